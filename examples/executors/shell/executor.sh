#!/bin/sh
# An executor in POSIX shell: Executor Protocol v1 with sh, awk and date alone.
#
# One request at a time, one line in, one line out. A handler is a function named handle_NAME. It
# prints its result as JSON and says with its exit status what became of the request:
#     0 success    75 retry, after $retry_after seconds    124 timeout    anything else an error
# What it prints on the standard error is for the log. It finds the request in
#     $call    {"args": [...], "kwargs": {...}} as JSON          $job_id    a JSON string
#     $first   the first positional argument as JSON, if it is short; null where there is none

set -uf
LC_ALL=C # bytes: JSON from outside is checked here, not by a locale
export LC_ALL
newline='
'
blank=$(printf ' \t\r')

# --- handlers: replace these with yours ----------------------------------------------------------

retry_after=5

handle_echo() {
    printf '%s' "$call"
}

handle_fail() {
    echo 'this handler always fails' >&2
    return 1
}

handle_retry() {
    return 75
}

handle_sleep() {
    sleep "$first" || return
    printf '%s' "$first"
}

handle_print() {
    printf '%s\n' "$first" >&2
    printf 'null'
}

handle_unserialisable() {
    printf 'a shell can print anything'
}

# --- reading JSON --------------------------------------------------------------------------------
# This reads one JSON value per line in the mode "result" and says "ok" or why not. In the mode
# "request" it prints, one per line: a verdict, the job_id as JSON, the function's name, the first
# argument, and the call. Values are never rebuilt: they are cut out of the line as they stand.
#
# The line is split at its quotation marks, so that awk looks at the inside of a string only once.

read_json='
function fail(reason) {
    if (flaw == "") flaw = reason
}

# A value begins or ends at a position of the line; `path` says where it stands in the request.
function begin_value(at) {
    if (state != "value" && state != "value or ]") fail("misplaced value")
    starts[depth] = at
}

function end_value(kind, at,    path) {
    path = depth == 0 ? "" : depth == 1 ? names[1] : depth == 2 ? names[1] "." names[2] : "deeper"
    if (depth < 3) {
        kinds[path] = kind
        texts[path] = substr(line, starts[depth], at - starts[depth] + 1)
    }
    if (depth > 0 && closers[depth] == "]") counts[depth]++
    if (depth == 2 && names[1] == "args" && counts[2] == 1) first = texts[path]
    state = depth == 0 ? "end" : "comma"
}

function open(closer, at) {
    begin_value(at)
    depth++
    closers[depth] = closer
    counts[depth] = 0
    names[depth] = ""
    state = closer == "}" ? "key or }" : "value or ]"
}

function close_with(closer, at) {
    if (depth == 0 || closers[depth] != closer) fail("misplaced " closer)
    if (state != "comma" && state != "key or }" && state != "value or ]") fail("misplaced " closer)
    if (flaw != "") return
    depth--
    end_value(closer == "}" ? "object" : "array", at)
}

function separate(mark) {
    if (mark == ":" && state == "colon") state = "value"
    else if (mark == "," && state == "comma") state = closers[depth] == "}" ? "key" : "value"
    else fail("misplaced " mark)
}

function end_word(at,    word, kind) {
    if (from == 0) return
    word = substr(line, from, at - from + 1)
    if (word == "true" || word == "false" || word == "null") kind = word
    else if (word ~ /^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?$/) kind = "number"
    else fail("a word that is no JSON")
    begin_value(from)
    end_value(kind, at)
    from = 0
}

# What stands between two strings: brackets, commas, colons, numbers and words.
function outside(part, at,    i, n, c) {
    n = length(part)
    from = 0
    for (i = 1; i <= n && flaw == ""; i++) {
        c = substr(part, i, 1)
        if (index(" \t\r{}[],:", c) == 0) {
            if (from == 0) from = at + i - 1
            continue
        }
        end_word(at + i - 2)
        if (c == "{") open("}", at + i - 1)
        else if (c == "[") open("]", at + i - 1)
        else if (c == "}" || c == "]") close_with(c, at + i - 1)
        else if (c == "," || c == ":") separate(c)
    }
    end_word(at + n - 1)
}

# A part of a string, up to its end or to a quotation mark that belongs to it.
function is_text(part) {
    if (part ~ /[\001-\037]/) return 0
    if (part !~ /\\/) return 1
    gsub(/\\["\\\/bfnrt]/, "", part)
    gsub(/\\u[0-9a-fA-F][0-9a-fA-F][0-9a-fA-F][0-9a-fA-F]/, "", part)
    return part !~ /\\/
}

function string(at, last) {
    if (state == "key" || state == "key or }") {
        names[depth] = depth < 3 ? plain(substr(line, at, last - at + 1)) : ""
        state = "colon"
        return
    }
    begin_value(at)
    end_value("string", last)
}

# The inside of a JSON string, with the escapes of plain characters undone.
function plain(text,    i, code) {
    text = substr(text, 2, length(text) - 2)
    while ((i = match(text, /\\u00[2-7][0-9a-fA-F]/)) > 0) {
        code = (substr(text, i + 4, 1)) * 16 + index("123456789abcdef", tolower(substr(text, i + 5, 1)))
        if (code == 92 || code == 34) break
        text = substr(text, 1, i - 1) sprintf("%c", code) substr(text, i + 6)
    }
    return text
}

function is_utf8(text) {
    gsub(/[\302-\337][\200-\277]/, "", text)
    gsub(/\340[\240-\277][\200-\277]/, "", text)
    gsub(/[\341-\354\356\357][\200-\277][\200-\277]/, "", text)
    gsub(/\355[\200-\237][\200-\277]/, "", text)
    gsub(/\360[\220-\277][\200-\277][\200-\277]/, "", text)
    gsub(/[\361-\363][\200-\277][\200-\277][\200-\277]/, "", text)
    gsub(/\364[\200-\217][\200-\277][\200-\277]/, "", text)
    return text !~ /[\200-\377]/
}

function parse(    parts, n, i, at, start, is_inside, tail, text) {
    flaw = state = first = ""
    depth = 0
    split("", kinds)
    split("", texts)
    state = "value"
    if (line ~ /[\200-\377]/ && !is_utf8(line)) { fail("not UTF-8"); return }
    n = split(line, parts, "\"")
    at = 1
    is_inside = 0
    for (i = 1; i <= n && flaw == ""; i++) {
        if (!is_inside) outside(parts[i], at)
        tail = at + length(parts[i]) # where the quotation mark stands
        if (is_inside) {
            # An odd number of backslashes before it makes it a part of the string.
            text = parts[i]
            if (match(text, /\\+$/) && RLENGTH % 2 == 1) text = text "\""
            if (!is_text(text)) fail("a string that is no JSON")
            if (text == parts[i]) {
                if (i == n) fail("a string without an end")
                else string(start, tail)
                is_inside = 0
            } else if (i == n) fail("a string without an end")
        } else if (i < n) {
            start = tail
            is_inside = 1
        }
        at = tail + 1
    }
    if (flaw == "" && state != "end") fail("it ends too early")
}

# Seconds since the year 0 of an RFC 3339 time; -1 when it is none.
function instant(text,    year, month, day, seconds, zone) {
    if (text !~ /^[0-9][0-9][0-9][0-9]-[01][0-9]-[0-3][0-9][Tt ][0-2][0-9]:[0-5][0-9]:[0-6][0-9](\.[0-9]+)?([Zz]|[-+][0-2][0-9]:[0-5][0-9])$/) return -1
    year = substr(text, 1, 4) + 0; month = substr(text, 6, 2) + 0; day = substr(text, 9, 2) + 0
    if (month < 1 || month > 12 || day < 1 || day > 31) return -1
    if (month < 3) { year--; month += 12 }
    day += 365 * year + int(year / 4) - int(year / 100) + int(year / 400) + int((153 * month - 457) / 5)
    seconds = day * 86400 + substr(text, 12, 2) * 3600 + substr(text, 15, 2) * 60 + substr(text, 18, 2)
    zone = substr(text, length(text) - 5)
    if (text ~ /[Zz]$/) return seconds
    return seconds - (substr(zone, 1, 1) "1") * (substr(zone, 2, 2) * 3600 + substr(zone, 5, 2) * 60)
}

function want(path, kind) {
    if (kinds[path] != kind) fail(path " is missing or wrong")
}

function may(path, kind, other) {
    if (kinds[path] != "" && kinds[path] != kind && kinds[path] != other) fail(path " is wrong")
}

function check(    past) {
    if (kinds[""] != "object") fail("not an object")
    may("protocol_version", "string", "string")
    want("job_id", "string")
    want("function_name", "string")
    may("args", "array", "array")
    may("kwargs", "object", "object")
    want("context", "object")
    want("context.job_id", "string")
    want("context.attempt", "number")
    want("context.enqueue_time", "string")
    want("context.queue_name", "string")
    may("context.deadline", "string", "null")
    may("context.worker_id", "string", "null")
    may("context.trace_context", "object", "null")
    if (flaw != "") return
    if (texts["context.attempt"] !~ /^[1-9][0-9]*$/) fail("context.attempt is wrong")
    if (plain(texts["context.job_id"]) != plain(texts["job_id"])) fail("context.job_id differs")
    if (instant(plain(texts["context.enqueue_time"])) < 0) fail("context.enqueue_time is wrong")
    if (kinds["context.deadline"] == "string") {
        past = instant(plain(texts["context.deadline"]))
        if (past < 0) fail("context.deadline is wrong")
        is_late = past < instant(now) # of which only whole seconds are known
    }
}

{
    line = $0
    sub(/\r$/, "", line)
    parse()
    if (mode == "result") { print flaw == "" ? "ok" : flaw; exit }
    is_late = 0
    if (flaw != "") { split("", kinds); split("", texts) }
    version = kinds["protocol_version"] == "string" ? plain(texts["protocol_version"]) : "1"
    if (flaw == "" && version == "1") check()
    if (version != "1") print "version"
    else print flaw != "" ? "invalid " flaw : is_late ? "late" : "fine"
    print kinds["job_id"] == "string" ? texts["job_id"] : "\"unknown\""
    name = kinds["function_name"] == "string" ? plain(texts["function_name"]) : "-"
    print name ~ /^[-A-Za-z0-9_.:#]+$/ && length(name) < 100 ? name : "-"
    if (first == "" || length(first) > 1000) first = "null"
    print first
    print "{\"args\": " ("args" in texts ? texts["args"] : "[]") ", \"kwargs\": " ("kwargs" in texts ? texts["kwargs"] : "{}") "}"
    exit
}'

# --- one request, one outcome --------------------------------------------------------------------

# outcome STATUS RESULT ERROR_MESSAGE ERROR_TYPE RETRY_AFTER, all but the first as JSON.
outcome() {
    printf '{"job_id":%s,"status":"%s","result":%s,"error_message":%s,"error_type":%s,"retry_after_seconds":%s}\n' \
        "$job_id" "$1" "$2" "$3" "$4" "$5" >&3
}

error() {
    outcome error null "\"$2\"" "\"$1\"" null
}

answer() {
    fields=$(printf '%s\n' "$1" | awk -v mode=request -v now="$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$read_json")
    IFS=$newline
    # shellcheck disable=SC2086 # it is meant to be split: one field per line, none empty
    set -- $fields
    unset IFS
    verdict=$1 job_id=$2 name=$3 first=$4 call=$5
    case $verdict in
        version) error unsupported_protocol_version 'Unsupported protocol version' ;;
        invalid*) error invalid_request "Invalid request: ${verdict#invalid }" ;;
        *)
            if ! command -v "handle_$name" >/dev/null; then
                error handler_not_found "No handler for $name"
            elif [ "$verdict" = late ]; then
                outcome timeout null '"The deadline had passed already"' null null
            else
                run "handle_$name"
            fi
            ;;
    esac
}

run() {
    result=$("$1" </dev/null 3>&-)
    status=$?
    case $status in
        0)
            case $result in
                *"$newline"*) check='more than one line' ;;
                *) check=$(printf '%s\n' "$result" | awk -v mode=result "$read_json") ;;
            esac
            if [ "$check" = ok ]; then
                outcome success "$result" null null null
            else
                error unserialisable_result "The result is no JSON: $check"
            fi
            ;;
        75) outcome retry null '"The handler asks for another attempt"' null "$retry_after" ;;
        124) outcome timeout null '"The handler timed out"' null null ;;
        *) error exit_status "The handler ended with exit status $status" ;;
    esac
}

# --- the process ---------------------------------------------------------------------------------

exec 3>&1 1>&2 # what a handler prints by mistake goes to the standard error
is_stopping=
trap 'is_stopping=1' TERM # a handler that is running is finished first
trap '' INT       # meant for the parent
trap '' PIPE

# An orchestrator that waits for a sign of life says where; not every shell can close it again.
if [ -n "${ERGON_READY_FD:-}" ] && [ -w "/dev/fd/$ERGON_READY_FD" ]; then
    printf '{"ready":true,"protocol_version":"1"}\n' >"/dev/fd/$ERGON_READY_FD"
fi

while [ -z "$is_stopping" ] && { IFS= read -r line || [ -n "$line" ]; }; do
    case $line in
        *[!"$blank"]*) answer "$line" || exit 0 ;;
    esac
done
exit 0
