"""Bugs planted in the scripts of flows, limits of keys and unique keys: all are rejected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ergon_framework.jobs.stores.redis import RedisJobStore, scripts
from ergon_framework.storage.redis.client import RedisScript
from ergon_framework.testing.suites.jobstore import JobStoreSuiteError, exercise_job_store

PLANTED = {
    "opens one early": (
        "if number == 0 then opened[#opened + 1] = join end",
        "if number <= 1 then opened[#opened + 1] = join end",
        "last_of_a_group_starts_what_follows",
    ),
    "forgets the slices of a release": (
        'put_work(join, "release", 0)\n      elseif',
        "drop_work(join)\n      elseif",
        "many_steps_are_released_and_counted",
    ),
    "forgets the slices of a sweep": (
        "put_work(flow_id, kind, last)",
        "drop_work(flow_id)",
        "many_steps_are_cancelled_and_retried",
    ),
    "goes on whatever the policy": (
        "elseif flow[ON_FAILURE] == GO_ON and not stops then",
        "elseif not stops then",
        "failure_cancels_what_waits",
    ),
    "tries again in a stopped flow": (
        "not is_final(status) and flows().is_stopped(job)",
        "false",
        "step_of_a_stopped_flow_is_not_tried_again",
    ),
    "lets a step be hurried": (
        "return job[STAGE] < JOINING",
        "return true",
        "waiting_step_is_pending",
    ),
    "loses early signals": (
        "place[EARLY] = value",
        "place[EARLY] = false",
        "early_signal_is_kept",
    ),
    "forgets early signals with their flow": (
        "if job[STATUS] == COMPLETED then place[EARLY] = false end",
        "place[EARLY] = false",
        "early_signal_outlives_the_stop_of_its_flow",
    ),
    "lets a step wait for a signal that has come": (
        "answered[#answered + 1] = job",
        "local _ = job",
        "early_signal_completes_a_step_that_comes_back",
    ),
    "erases no early signals": (
        "if has(job, IS_STEP) then flows().erase(id) end",
        "",
        "early_signal_is_erased_with_its_step",
    ),
    "lets a second signal replace the first": (
        'if place[EARLY] and place[EARLY] ~= value then return "signalled" end',
        "",
        "early_signal_is_kept",
    ),
    "takes a signal for the last of its name": (
        "later = later or job",
        "later = job",
        "signal_is_for_one_step",
    ),
    "takes late signals": (
        "elseif job[EXPIRES_AT] <= now then",
        "elseif false then",
        "signal_comes_too_late",
    ),
    "lets signals run out from the beginning": (
        "place[DELAY] and now + place[DELAY] or",
        "place[DELAY] and job[CREATED_AT] + place[DELAY] or",
        "signal_has_a_time_limit",
    ),
    "purges steps alone": (
        "and not has(job, IS_STEP)",
        "",
        "steps_are_kept_with_their_flow",
    ),
    "does not look at failures": (
        'if is_final(job[STATUS]) and machine.may(flow, "step_ended") then',
        "if false then",
        "failed_job_is_dealt_with_at_once",
    ),
    "loads a step as a job that is due": (
        "flows().take_in(job, place)",
        "job[STAGE] = WAITS",
        "loaded_flows_go_on",
    ),
    "loads no open joins of a stopped flow": (
        "then park(id) end",
        "then return 1 end",
        "loaded_flow_can_be_retried",
    ),
    "forgets when a key has a token": (
        'call("ZADD", KEY_WAKES, exact(at), name)',
        "",
        "rate_of_a_key_gives_tokens_with_time",
    ),
    "forgets the tokens of keys": (
        'if gate.is_used then call("ZADD", KEY_BUCKETS, exact(gate.full_at), name) end',
        "",
        "rate_of_a_key_begins_with_a_full_bucket",
    ),
    "counts no running jobs of a key": (
        "active = gate.key_most and running_of(name, KEY_RUNNING),",
        "active = 0,",
        "queue_limits_each_key",
    ),
    "waits for a clock that was set back": (
        "if gate.full_at > latest then",
        "if false then",
        "rate_heals_when_the_clock_is_set_back",
    ),
    "begins with the first key each time": (
        "turns[share] = key",
        "",
        "turns_go_on_with_the_next_claim",
    ),
    "leaves jobs in their turns": (
        "if name == queue then stand_in_lane(lane) end",
        "",
        "keys_that_stop_taking_turns_are_found",
    ),
    "unlists a lane whose keys have jobs": (
        'call("EXISTS", key) == 1 or call("EXISTS", DUE_KEYS .. lane) == 1',
        'call("EXISTS", key) == 1',
        "keys_take_turns",
    ),
    "claims from queues of other versions": (
        "return not gate.is_paused and (not gate.version or gate.version == ask.version)",
        "return not gate.is_paused",
        "pinned_queue_is_left_to_its_version",
    ),
    "forgets the pin when tokens are taken": (
        "gate.key_burst or 1, gate.version,",
        "gate.key_burst or 1,",
        "pin_is_kept_beside_limits",
    ),
    "counts every end": (
        "if status == job[STATUS] then return true end",
        "return true",
        "end_that_does_not_count_frees_the_key",
    ),
    "ends a period late": (
        "if not taker[3] or now >= taker[3] then",
        "if not taker[3] or now > taker[3] then",
        "completed_job_holds_its_key_for_its_period",
    ),
    "purges who holds a key": (
        "if taker and taker[1] == id and still_holds(taker, job) then",
        "if false then",
        "holder_outlives_its_retention",
    ),
    "lets jobs come back beside one that waits": (
        "if is_key_waited_with(job) then return false end",
        "",
        "waiting_only_does_not_come_back_beside_another",
    ),
    "hurries what it extends": (
        "max(job[RUN_AT], new[6] or now + new[5]), now",
        "new[6] or now + new[5], now",
        "extended_job_is_never_due_sooner",
    ),
    "keeps the old arguments": (
        "sub(body, arguments_in(body))",
        "sub(old, from, to)",
        "extended_job_waits_for_the_new_time",
    ),
    "reads short arguments only": (
        'at + 3 + unpack_from(">I2", text, at + 1)',
        "at + 2 + byte(text, at + 2)",
        "large_and_small_arguments_take_each_others_place",
    ),
    "loads no keys": (
        "then take_key(job, rule[1], rule[2]) end\n  end\n  return true",
        "then return true end\n  end\n  return true",
        "loaded_jobs_hold_their_keys_by_their_rules",
    ),
}
"""By name: what stands in a script, what stands there instead, and the check that is about it."""


@pytest.mark.req("SCALE:jobs-redis")
@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_script_is_rejected(
    bug: str, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each by the check that is about it."""
    right, wrong, check = PLANTED[bug]
    right, wrong = (scripts.script_of(each).text.decode() for each in (right, wrong))
    spoilt: dict[str, RedisScript] = {}

    def spoil(what: RedisScript) -> RedisScript:
        text = what.text.decode()
        if right not in text:
            return what
        return spoilt.setdefault(text, scripts.script_of(text.replace(right, wrong)))

    def make(clock: Callable[[], float]) -> RedisJobStore:
        store = RedisJobStore(redis_url, clock=clock)
        run = store.transactions.run

        def running(what: RedisScript, *args: Any, **options: Any) -> Any:
            return run(spoil(what), *args, **options)

        monkeypatch.setattr(store.transactions, "run", running)
        return store

    with pytest.raises(JobStoreSuiteError) as caught:
        exercise_job_store(make, only={check})
    assert caught.value.report.failed == (check,)
    assert spoilt
