"""What the URL of a bucket says, and what it must not."""

from __future__ import annotations

import pytest

from ergon_framework.errors import ConfigurationError
from ergon_framework.storage.objectstore.s3_client import Bucket, bucket_of, connect

pytestmark = pytest.mark.req("SCALE:objects-s3", "SCALE:url-errors")


def test_everything_that_a_url_says() -> None:
    """The bucket, the prefix, the endpoint and the region."""
    url = "S3://shop/zone%20a/objects/?endpoint=http://127.0.0.1:9000&region=eu-central-1"
    bucket = bucket_of(url)
    assert bucket == Bucket("s3", "shop", "zone a/objects", "http://127.0.0.1:9000", "eu-central-1")
    assert bucket.place == "s3://shop/zone a/objects"
    assert bucket_of("gs://shop").place == "gs://shop"
    assert bucket_of("az://shop/a/b") == Bucket("az", "shop", "a/b")


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("ftp://shop", "names no bucket"),
        ("s3://", "begins with s3://bucket"),
        ("s3:///objects", "begins with s3://bucket"),
        ("s3://shop:9000/objects", "begins with s3://bucket"),
        ("s3://key:hunter2@shop/objects", "holds no credentials"),
        ("s3://shop/a//b", "a part that is empty"),
        ("s3://shop/../b", "a part that is empty"),
        ("s3://shop?secret=hunter2", "unknown option 'secret'"),
        ("gs://shop?region=x", "unknown option 'region'"),
        ("s3://shop?endpoint=127.0.0.1", "endpoint of a bucket is the URL"),
        ("s3://shop?endpoint=http://me:hunter2@host", "endpoint of a bucket is the URL"),
    ],
)
def test_wrong_urls_are_refused(url: str, problem: str) -> None:
    """Each with what is wrong and what to write, and no error shows a password."""
    with pytest.raises(ConfigurationError, match=problem) as caught:
        bucket_of(url)
    assert caught.value.remedy
    assert "hunter2" not in str(caught.value)


def test_buckets_of_the_other_clouds_are_reached_with_their_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is asked yet; what a cloud needs and did not get is told."""
    assert type(connect(bucket_of("gs://shop/a"))).__name__ == "GCSStore"
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(ConfigurationError, match=r"az://shop cannot be used: .*Account") as caught:
        connect(bucket_of("az://shop"))
    assert "environment" in caught.value.remedy
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "mine")
    assert type(connect(bucket_of("az://shop"))).__name__ == "AzureStore"
