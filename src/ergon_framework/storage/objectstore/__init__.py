"""Blobs, named by the SHA-256 of their content: in a folder, a bucket, or memory.

Each store fulfils ``ergon_framework.ports.objectstore``, and a URL says which one somebody has. The
artifacts of a zone are kept here. Start with ``filesystem``.

- ``urls``: opens the store that a URL or a folder names.
- ``filesystem``: blobs as files of a folder, uploads that a client resumes, and whose folder it is.
- ``s3``: blobs in a bucket of S3, Google Cloud Storage or Azure, uploads staged on disk before.
- ``s3_client``: the bucket itself: URL, credentials, requests, errors, and what ``doctor`` asks.
- ``memory``: the reference model.
- ``blob_io``: hashing beside the network, writing past the cache, verifying and copying.
- ``disk``: files, locks, and what an error of the operating system means.
"""
