"""Executors with one realistic bug each: the kit must reject every one, and say why."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from ergon_framework.testing.suites.executor import EXECUTOR_CHECKS
from ergon_framework.testing.suites.framework import CheckOutcome, SuiteReport
from tests.campaign.parameter_sample import sampled
from tests.conform.bad_tables import CHANGES, DIES, REFUSES
from tests.conform.executors import bad, tried

Reports = dict[tuple[str, str, str], Future[SuiteReport]]
WIRE, BEHAVIOUR, TABLES = "bad_wire", "bad_behaviour", "bad_tables"

# The module, the executor, the check that must fail, and words its reason must have.
BAD: list[tuple[str, str, str, str]] = [
    (WIRE, "Deaf", "answers_a_request", "silent"),
    (WIRE, "DiesAtStart", "answers_a_request", "exit code 3.*no such module: settings"),
    (WIRE, "AnswersOnStderr", "answers_a_request", "standard error.*conform"),
    (WIRE, "NeverFlushes", "answers_while_input_is_open", "flush"),
    (WIRE, "PrettyPrints", "outcome_is_on_one_line", "over 8 lines"),
    (WIRE, "ForgetsTheNewline", "outcome_ends_with_a_newline", "ends with"),
    (WIRE, "WritesLatin1", "outcome_is_utf8", "not UTF-8 at byte"),
    (WIRE, "BeginsWithAMark", "outcome_is_utf8", "byte order mark"),
    (WIRE, "WritesNaN", "outcome_is_json", "there is no NaN"),
    (WIRE, "WritesPython", "outcome_is_json", "not JSON"),
    (WIRE, "AnswersWithAList", "outcome_is_an_object", "no object"),
    (WIRE, "Greets", "stdout_holds_only_outcomes", "no outcomes: 1.*executor ready"),
    (WIRE, "LogsOnStdout", "all_of_stdout_is_outcomes", "INFO done"),
    (WIRE, "FloodsStdout", "stdout_holds_only_outcomes", "working"),
    (WIRE, "AnswersTwice", "one_request_has_one_outcome", "2 outcomes"),
    (WIRE, "AnswersAgainAtTheEnd", "nothing_is_answered_twice", "answered 2 times"),
    (WIRE, "ForgetsTheJobId", "job_id_is_echoed", "answered with None"),
    (WIRE, "AsciiJobIds", "job_id_keeps_unicode", r"gr\?\?e"),
    (WIRE, "CutJobIds", "job_id_may_be_long", "answered with"),
    (WIRE, "StrippedJobIds", "job_id_keeps_blanks", "'two  blanks'"),
    (WIRE, "NumericJobIds", "job_id_stays_text", "answered with 7"),
    (WIRE, "UnescapedJobIds", "job_id_keeps_odd_characters", "is not JSON"),
    (WIRE, "LastJobIdInSight", "job_id_is_not_taken_from_the_arguments", "deeper"),
    (WIRE, "RemembersJobs", "same_job_is_answered_again", "no outcome came"),
    (WIRE, "SplitsOnUnicodeLines", "job_id_keeps_unicode_line_breaks", "unknown"),
    (WIRE, "SplitsOnUnicodeLines", "keeps_line_separators", "error"),
    (WIRE, "EveryReadIsARequest", "request_may_come_in_pieces", "unknown|not served"),
    (WIRE, "OneLinePerRead", "two_requests_may_come_in_one_piece", "no outcome came"),
    (WIRE, "OneLinePerRead", "many_requests_at_once", "no outcome came"),
    (WIRE, "SmallBuffer", "large_request_is_served", "line too long"),
    (WIRE, "StrictFields", "unknown_fields_are_ignored", "not served.*unknown field"),
    (WIRE, "NeedsADeadline", "optional_fields_may_be_absent", "deadline is missing"),
    (WIRE, "NeedsADeadline", "optional_fields_may_be_null", "deadline is missing"),
    (WIRE, "UtcOnly", "times_may_have_an_offset", "time is not UTC"),
    (WIRE, "SixDigits", "times_may_have_nine_digits", "too many digits"),
    (WIRE, "ChokesOnBlankLines", "blank_lines_do_no_harm", "exit code 9"),
    (WIRE, "ChokesOnCarriageReturns", "carriage_return_before_newline_is_accepted", "carriage"),
    (BEHAVIOUR, "SaysOk", "status_is_one_of_four", "'failed': use one of success"),
    (BEHAVIOUR, "ErrorsAreObjects", "optional_fields_have_their_types", "error_message is {"),
    (BEHAVIOUR, "UnknownSucceeds", "unknown_handler_is_an_error", "'success'"),
    (BEHAVIOUR, "UnknownIsAnyError", "unknown_handler_is_named_so", "'LookupError'"),
    (BEHAVIOUR, "UnknownKills", "unknown_handler_is_an_error", "exit code 9"),
    (BEHAVIOUR, "FindsAttributes", "odd_names_are_no_handlers", "no handler '__class__'"),
    (BEHAVIOUR, "IgnoresCase", "handler_names_are_exact", "no handler 'Echo'"),
    (BEHAVIOUR, "DropsKwargs", "keeps_keyword_arguments", "kwargs were .*returned {}"),
    (BEHAVIOUR, "SortsArguments", "keeps_positional_arguments", "args held 3"),
    (BEHAVIOUR, "ThirtyTwoBits", "keeps_whole_numbers", "args held"),
    (BEHAVIOUR, "TrueIsOne", "keeps_words_of_json", "held True, and it returned 1"),
    (BEHAVIOUR, "ArgumentsLinger", "arguments_do_not_linger", "'only'"),
    (BEHAVIOUR, "FormatsArguments", "keeps_text_that_looks_like_code", "%%"),
    (BEHAVIOUR, "DiesOfBadJson", "survives_what_is_no_json", "after the line.*exit code 9"),
    (BEHAVIOUR, "DiesOfLists", "survives_json_that_is_no_object", "after the line"),
    (BEHAVIOUR, "DiesOfMissingFields", "survives_missing_fields", "after the line"),
    (BEHAVIOUR, "DiesOfMissingFields", "survives_missing_context_fields", "after the line"),
    (BEHAVIOUR, "DiesOfNesting", "survives_endless_nesting", r"after the line '\[\["),
    (BEHAVIOUR, "FailureKills", "failure_does_not_end_the_process", "exit code 9"),
    (BEHAVIOUR, "BadArgumentsAreNotFound", "bad_arguments_are_not_handler_not_found", "'sleep'"),
    (BEHAVIOUR, "IgnoresTheEnd", "end_of_input_ends_it", "still runs"),
    (BEHAVIOUR, "DropsAtTheEnd", "what_was_asked_before_the_end_is_answered", "exit code 0"),
    (BEHAVIOUR, "NeedsTheLastNewline", "last_line_needs_no_newline", "exit code 0"),
    (BEHAVIOUR, "EndsOnlyAfterWork", "end_of_input_ends_it_without_requests", "still runs"),
    (
        BEHAVIOUR,
        "DropsTheRunningJobAtTheEnd",
        "running_job_outlives_the_end_of_input",
        "exit code 0",
    ),
    (BEHAVIOUR, "HangsOnHalfALine", "half_a_request_at_the_end_is_harmless", "still runs"),
    (BEHAVIOUR, "CutsTheLastLine", "last_outcome_is_whole", "65536 bytes stand after"),
    (BEHAVIOUR, "CutsTheLastLine", "keeps_long_text", "without its end"),
    (BEHAVIOUR, "TiresAfterFifty", "many_requests_one_after_the_other", "no outcome came"),
    (BEHAVIOUR, "TiresAfterFifty", "many_requests_at_once", "no outcome came"),
    (BEHAVIOUR, "FailureKills", "different_requests_at_once", "exit code 9"),
    (BEHAVIOUR, "FailureKills", "failure_is_an_error", "exit code 9"),
]
IMPOLITE: list[tuple[str, str, str, str]] = [
    (WIRE, "EndsWithCarriageReturns", "outcome_ends_with_nothing_but_a_newline", "carriage"),
    (WIRE, "AnswersBlankLines", "blank_lines_are_not_answered", "4 lines for four blank ones"),
    (BEHAVIOUR, "TellsNothing", "error_has_a_message", "' '"),
    (BEHAVIOUR, "TellsNothing", "error_message_names_the_handler", "' '"),
    (BEHAVIOUR, "SuccessHasMessages", "success_says_nothing_of_errors", "'OK'"),
    (BEHAVIOUR, "FailureHasAResult", "failure_has_no_result", "'partial'"),
    (BEHAVIOUR, "CollidingNames", "keeps_odd_names", "multiple values"),
    (BEHAVIOUR, "AnyDeadline", "broken_time_is_refused", "not refused"),
    (BEHAVIOUR, "AnswersBackwards", "answers_come_in_order", "another order"),
    (BEHAVIOUR, "RefusesToBeTold", "in_flight_of_one_is_served", "exit code 5"),
    (BEHAVIOUR, "RefusesToBeTold", "in_flight_of_several_is_served", "exit code 5"),
    (BEHAVIOUR, "BadLinesCostTheExitCode", "bad_line_does_not_change_the_exit_code", "code 1"),
    (BEHAVIOUR, "SpinsWithoutAReader", "ends_when_nobody_reads", "still runs"),
    (BEHAVIOUR, "LeavesFieldsOut", "every_field_is_there", "lacks result"),
    (BEHAVIOUR, "AlwaysUnknown", "bad_request_is_answered_with_its_job_id", "'unknown'"),
    (BEHAVIOUR, "SilentAboutBadLines", "unreadable_line_is_answered_as_unknown", "0 times"),
    (BEHAVIOUR, "ServesEveryVersion", "other_protocol_version_is_refused", "not refused"),
    (BEHAVIOUR, "SilentFailure", "failure_has_a_message", "no error_message"),
    (BEHAVIOUR, "RetryWithoutDelay", "retry_says_when", "None"),
    (BEHAVIOUR, "PrintsOnStdout", "prints_do_not_reach_the_protocol", "a line of text"),
    (BEHAVIOUR, "ResultsKill", "result_that_is_no_json_is_an_error", "exit code 9"),
    (BEHAVIOUR, "IgnoresDeadlines", "deadline_in_the_past_is_a_timeout", "success"),
    (BEHAVIOUR, "IgnoresDeadlines", "job_past_its_deadline_does_not_run", "no outcome came"),
    (BEHAVIOUR, "IgnoresDeadlines", "deadline_ends_a_running_handler", "no outcome came"),
    (BEHAVIOUR, "Overlaps", "one_at_a_time_unless_told_otherwise", "overtook"),
    (BEHAVIOUR, "Overlaps", "in_flight_limit_is_kept", "did not wait"),
    (BEHAVIOUR, "OneAtATime", "several_in_flight_when_asked", "waited for the slow one"),
    (BEHAVIOUR, "Heartbeats", "idle_executor_is_silent", "unasked it wrote.*heartbeat"),
    (BEHAVIOUR, "ExitsWithOne", "end_of_input_is_exit_code_zero", "exit code 1"),
    (BEHAVIOUR, "DiesOfSigterm", "sigterm_ends_an_idle_process", "signal 15"),
    (BEHAVIOUR, "DropsWorkOnSigterm", "sigterm_lets_a_running_job_finish", "no outcome came"),
    (BEHAVIOUR, "DropsWorkOnSigint", "sigint_lets_a_running_job_finish", "exit code 130"),
    (BEHAVIOUR, "NeverReady", "readiness_is_reported", "nothing was written"),
    (BEHAVIOUR, "TrustsTheReadyDescriptor", "broken_ready_descriptor_is_harmless", "exit code"),
]


CASES = [*REFUSES, *DIES, *CHANGES]
"""Each is one line of the executor's: ``make test`` tries every third of its kind."""


@pytest.fixture(scope="module")
def reports(request: pytest.FixtureRequest) -> Iterator[Reports]:
    """The reports the selected tests need, made a few at a time: mostly somebody waits."""
    here = [each for each in request.session.items if each.path == request.path]
    params = [each.callspec.params for each in here if hasattr(each, "callspec")]
    wanted = [
        (each.get("module", TABLES), each.get("name", each["check"]), each["check"])
        for each in params
    ]
    with ThreadPoolExecutor(3) as pool:
        yield {
            (module, name, check): pool.submit(tried, bad(module, name), check)
            for module, name, check in wanted
        }
        pool.shutdown(cancel_futures=True)


@pytest.mark.slow
@pytest.mark.req("JOBS:conform")
@pytest.mark.parametrize(("module", "name", "check", "words"), sampled(BAD, BAD[::2]))
def test_a_bad_executor_is_rejected(
    reports: Reports, module: str, name: str, check: str, words: str
) -> None:
    """The required check that is about its bug fails, and the reason names the bug."""
    results = reports[module, name, check].result().results
    (found,) = (one for one in results if one.name == check)
    assert (found.outcome, found.required) == (CheckOutcome.FAILED, True), found.reason
    assert re.search(words, found.reason, re.DOTALL), found.reason


@pytest.mark.slow
@pytest.mark.req("JOBS:conform")
@pytest.mark.parametrize(("module", "name", "check", "words"), sampled(IMPOLITE, IMPOLITE[::3]))
def test_an_impolite_executor_is_told_so(
    reports: Reports, module: str, name: str, check: str, words: str
) -> None:
    """The recommended check that is about its manners fails, and the report as a whole does not."""
    report = reports[module, name, check].result()
    (found,) = report.results
    assert (found.outcome, found.required) == (CheckOutcome.FAILED, False), found.reason
    assert report.ok
    assert re.search(words, found.reason, re.DOTALL), found.reason


@pytest.mark.slow
@pytest.mark.req("JOBS:conform")
@pytest.mark.parametrize("check", sampled(CASES, CASES[::3]))
def test_one_case_that_is_not_served_is_noticed(reports: Reports, check: str) -> None:
    """An executor that is good but for one case fails the check of that case."""
    report = reports[TABLES, check, check].result()
    assert report.failed == (check,), report


def test_almost_every_check_has_a_bug_that_it_must_notice() -> None:
    """A check that nothing can fail is worth nothing; and a renamed one leaves no bug unwatched."""
    known = {check.name for check in EXECUTOR_CHECKS}
    watched = {check for _, _, check, _ in BAD + IMPOLITE} | {*REFUSES, *DIES, *CHANGES}
    assert watched <= known
    assert known - watched == {
        "first_answer_comes_soon",  # needs an executor that is slow to start
        "retry_is_a_retry",  # a handler that does something else is not taken for it
        "survives_many_bad_lines",  # needs one that dies of the hundredth
    }
