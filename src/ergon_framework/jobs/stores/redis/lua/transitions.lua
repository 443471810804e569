-- Moving jobs: where each stands, and what a settlement makes of it.

local freed = {} -- limit keys, and how many that wait for each may go

local gates = {} -- by queue
local has_gates -- whether any queue has settings
local OPEN = {}
local titles = {} -- under which the jobs of a status and a queue are counted
local ends = {} -- by how long jobs are kept: when they are purged

local function gate_from(queue, found)
  if not found then
    gates[queue] = OPEN
    return OPEN
  end
  local is_read, settings = pcall(cmsgpack.unpack, found)
  if not is_read or type(settings) ~= "table" then settings = {true} end -- what limits it is unknown
  local gate = settings
  gate = {
    is_paused = gate[1], most = gate[2], rate = gate[3], burst = gate[4], full_at = gate[5],
    key_most = gate[6], key_rate = gate[7], key_burst = gate[8],
    version = gate[9],
  }
  gates[queue] = gate
  return gate
end

local function gate_of(queue)
  local gate = gates[queue]
  if gate then return gate end
  if has_gates == nil then has_gates = call("EXISTS", QUEUES) == 1 end
  return gate_from(queue, has_gates and call("HGET", QUEUES, queue))
end

-- Read the settings of many queues at once.
local function know_gates(queues)
  if has_gates == nil then has_gates = call("EXISTS", QUEUES) == 1 end
  if not has_gates or #queues == 0 then return end
  local found = call("HMGET", QUEUES, unpack(queues))
  for n, queue in ipairs(queues) do
    if not gates[queue] then gate_from(queue, found[n]) end
  end
end

local function limits_keys(gate) return gate.key_most or gate.key_rate end

local function count(status, queue, number)
  local names = titles[status]
  if not names then
    names = {}
    titles[status] = names
  end
  if not names[queue] then names[queue] = status .. ":" .. queue end
  add_up(COUNTS, names[queue], number)
end

-- Note what is wrong with a row, and whatever is known of it; it stays as it is.
local function note(id, seq, queue, status, problem)
  notes[id] = cmsgpack.pack({seq, queue, status, problem, now})
  is_any_aside = true
end

-- Take a row that is none out of a set in which it was met.
local function drop_odd(id, key, member, tag, queue)
  rank(key, member, false)
  local row = odd[id]
  local status = row and #row > 1 and byte(row, 2) == RETRYING and RETRYING or PENDING
  if queue then count(status, queue, -1) end
  if row then note(id, (unpack_from(">I8", tag)), queue or "", status, "its row is no job's") end
end

local function line_up(job, is_there)
  local stage = job[STAGE]
  if stage == WAITS then
    local lane = lane_of(job[EXECUTOR], job[QUEUE])
    local takes_turns = has(job, HAS_KEY) and limits_keys(gate_of(job[QUEUE]))
    if takes_turns then
      local key = due_of_key(job[LIMIT_KEY], lane)
      rank(key, place(job), is_there and -job[PRIORITY])
      lanes[key] = {DUE_KEYS .. lane, job[LIMIT_KEY]}
    end
    -- One that was due before the keys of its queue took turns stands in the lane itself.
    if not takes_turns or not is_there then
      rank(DUE .. lane, place(job), is_there and -job[PRIORITY])
    end
    lanes[DUE .. lane] = {LANES, lane}
  elseif stage == ACTIVE then
    rank(LEASES, job[TAG], is_there and job[LEASED_UNTIL])
  elseif stage == LATER then
    rank(SOON, job[TAG], is_there and job[RUN_AT])
  elseif stage == LIMITED then
    local group = group_of(job)
    rank(BLOCKED .. group, place(job), is_there and -job[PRIORITY])
    lanes[BLOCKED .. group] = {ASIDE, group}
  elseif stage == ENDED then
    if job[PURGE_AT] < FOREVER then rank(PURGING, job[TAG], is_there and job[PURGE_AT]) end
  elseif stage >= JOINING then
    flows().line_up(job, is_there)
  end
  if stage > ACTIVE and job[EXPIRES_AT] < FOREVER then
    rank(EXPIRING, job[TAG], is_there and job[EXPIRES_AT])
  end
end

local INDEXED = {[RETRYING] = true, [FAILED] = true, [CANCELLED] = true}

-- A job is where its row says, from now on or no more.
local function stand(job, is_there)
  line_up(job, is_there)
  count(job[STATUS], job[QUEUE], is_there and 1 or -1)
  if INDEXED[job[STATUS]] then
    rank(IN .. job[STATUS], job[TAG], is_there and job[SEQ])
  end
  if job[STAGE] == ENDED then return end
  if has(job, IS_UNIQUE) then holders[job[UNIQUE_KEY]] = is_there and job[ID] end
  if has(job, HAS_KEY) and job[STAGE] == ACTIVE then
    add_up(RUNNING, job[LIMIT_KEY], is_there and 1 or -1)
    add_up(KEY_RUNNING, key_in(job[QUEUE], job[LIMIT_KEY]), is_there and 1 or -1)
  end
end

-- Let a job stand elsewhere without having been moved: only how it waits has changed.
local function shift(job, stage)
  line_up(job, false)
  job[STAGE] = stage
  line_up(job, true)
  changed[job[ID]] = job
end

-- ---- what happened to it ------------------------------------------------------------------------

local function told_in(tale)
  if not tale or #tale < 9 then return "", "", "", 0 end -- lost, or somebody else wrote it
  local history, failure, kind = unpack_from(">I4I4B", tale)
  local at = 10 + history
  return sub(tale, 10, at - 1), sub(tale, at, at + failure - 1), sub(tale, at + failure), kind
end

local function tale_of(id)
  return tales[id] or call("HGET", TALE, id)
end

-- Half of what may be kept, so that it is not shortened again with every move.
local function shortened(history)
  if #history < MOST_ENTRIES then return history end
  local breaks = {}
  for at in string.gmatch(history, "()\n") do breaks[#breaks + 1] = at end
  if #breaks == 0 or (#breaks < MOST_ENTRIES and #history <= MOST_HISTORY) then return history end
  local first = max(1, #breaks - MOST_ENTRIES / 2 + 1)
  while first < #breaks and #history - breaks[first] > MOST_HISTORY / 2 do first = first + 1 end
  return sub(history, breaks[first] + 1)
end

local function retold(job, tale, is_reset)
  if not has(job, HAS_TALE) then
    set_flag(job, HAS_TALE, true)
    return tale
  end
  local history, failure = told_in(tale_of(job[ID]))
  local entry, new_failure, result, kind = told_in(tale)
  history = shortened(history .. "\n" .. entry)
  if new_failure ~= "" or is_reset then failure = new_failure end
  return pack(">I4I4B", #history, #failure, kind) .. history .. failure .. result
end

-- Whether this very move is the last that was made: its answer was lost, and it is told again.
local function was_made(job, fence, tale)
  if fence > job[FENCE] or not has(job, HAS_TALE) then return false end
  local entry, history = told_in(tale), (told_in(tale_of(job[ID])))
  return history == entry or sub(history, -#entry - 1) == "\n" .. entry
end

-- ---- unique keys with a rule --------------------------------------------------------------------

-- Who took a key last: its id, the ends after which it holds the key, and until when; false where it
-- holds the key only while it waits.
local function taker_of(key)
  local found = takers[key]
  if found == nil then found = call("HGET", TAKERS, key) end
  return found and cmsgpack.unpack(found)
end

local function take_key(job, states, seconds)
  takers[job[UNIQUE_KEY]] =
    cmsgpack.pack({job[ID], states, seconds and job[CREATED_AT] + seconds or false})
end

local function is_waiting(job) return job[STATUS] == PENDING or job[STATUS] == RETRYING end

-- The same as ``is_held`` of ``core/unique.py``.
local function still_holds(taker, job)
  if job[STATUS] < COMPLETED then return taker[3] ~= false or is_waiting(job) end
  if not taker[3] or now >= taker[3] then return false end
  for _, status in ipairs(taker[2]) do
    if status == job[STATUS] then return true end
  end
  return false
end

-- Whether another job waits with the key of one that has ended, and holds it while it waits.
local function is_key_waited_with(job)
  local taker = taker_of(job[UNIQUE_KEY])
  if not taker or taker[3] or taker[1] == job[ID] then return false end
  local other = job_of(taker[1])
  return other and is_waiting(other)
end

-- ---- one settlement -----------------------------------------------------------------------------

local function is_final(status) return status >= COMPLETED end

local function may_move(job, fence, expected, status, if_expired)
  if job[FENCE] ~= fence or job[STATUS] ~= expected then return false end
  if if_expired and job[LEASED_UNTIL] > now then return false end
  if is_final(expected) and job[UNIQUE_KEY] ~= "" then
    if holder_of(job[UNIQUE_KEY]) then return false end
    if is_key_waited_with(job) then return false end
  end
  -- One whose cancellation was requested while it ran does not wait again: see settle_cancelled.
  return is_final(status) or job[STAGE] ~= ACTIVE or job[WHY] == ""
end

local function let_go(job)
  if has(job, HAS_KEY) then freed[job[LIMIT_KEY]] = (freed[job[LIMIT_KEY]] or 0) + 1 end
  if job[STAGE] == ACTIVE and gate_of(job[QUEUE]).most then is_work = true end
end

-- What most settlements are: a running job of which nothing special is known has completed. The
-- same as ``apply`` in fewer steps, on the row as it is; false where that does not do.
local function complete(id, seq, fence, attempts, excused, span, tale)
  local row = rows[id]
  if jobs[id] ~= nil or not row then return false end
  local stage, _, flags, known_fence = unpack_from(">BBBI8", row)
  if stage ~= ACTIVE or flags % IS_STEP >= HAS_TALE or known_fence ~= fence then return false end
  local why, worker, known_seq = unpack_from(">I4I4I8", row, 72)
  if known_seq ~= seq then return false end
  if flags >= IS_STEP then
    if not flows().completed(id, span) then return false end
    span = nil -- it is kept as long as its flow
  end
  local tag = sub(row, 80, 87) .. id
  local queue = sub(row, 124, 123 + unpack_from(">I4", row, 108))
  local purge_at = span and now + span or FOREVER
  rows[id] = pack(">BBBI8", ENDED, COMPLETED, HAS_TALE + flags - flags % HAS_EXPIRY, fence)
    .. sub(row, 12, 15) .. pack(">I4I4dddd", attempts, excused, now, 0, 0, purge_at)
    .. sub(row, 56, 71) .. pack(">I4I4", 0, 0) .. sub(row, 80, #row - why - worker)
  written[id], tales[id] = rows[id], tale
  rank(LEASES, tag, false)
  if span then
    if not ends[span] then ends[span] = exact(purge_at) end
    rank(PURGING, tag, ends[span])
  end
  count(RUNS, queue, -1)
  count(COMPLETED, queue, 1)
  if gate_of(queue).most then is_work = true end
  is_done = true
  return true
end

-- Move a job; whether that may be was asked before.
local function move(job, status, attempts, excused, words, span, why, tale, lane)
  local is_reset, before = words % 2 == IS_RESET, job[STATUS]
  stand(job, false)
  let_go(job)
  if lane then job[EXECUTOR] = lane end -- it waits for a worker that has its handler
  job[STATUS], job[ATTEMPTS], job[EXCUSED], job[WHY] = status, attempts, excused, why
  job[CHANGED_AT], job[CLAIMED_AT], job[LEASED_UNTIL], job[WORKER] = now, 0, 0, ""
  job[PURGE_AT] = FOREVER
  set_flag(job, IS_CHARGED, false)
  set_flag(job, IS_SOLO, words >= SOLO)
  tales[job[ID]] = retold(job, tale, is_reset)
  if is_reset then job[DELIVERIES], job[EXPIRES_AT] = 0, FOREVER end
  if is_final(status) then
    job[STAGE] = ENDED
    if span then job[PURGE_AT] = now + span end
    is_done = true
  else
    job[STAGE] = span > 0 and LATER or WAITS
    job[RUN_AT] = now + span
    is_work = true
    if is_final(before) and job[UNIQUE_KEY] ~= "" and not has(job, IS_UNIQUE) then
      take_key(job, {}, false)
    end
  end
  if has(job, IS_STEP) then flows().moved(job, before, span) end
  stand(job, true)
  changed[job[ID]] = job
end

local function apply(settlement)
  local id, seq, fence, expected, status, attempts, excused, words, span, why, tale, lane =
    unpack(settlement, 1, 12)
  tale = blob(tale)
  if status == COMPLETED and expected == RUNS and words == 0 and why == ""
    and complete(id, seq, fence, attempts, excused, span, tale) then
    return true
  end
  local job = job_of(id)
  if not job or job[SEQ] ~= seq then return false end
  if not may_move(job, fence, expected, status, words % 4 >= IF_EXPIRED) then
    return was_made(job, fence, tale)
  end
  local is_step = has(job, IS_STEP)
  if is_step and not flows().may_move(job, status) then return false end
  move(job, status, attempts, excused, words, span, why, tale, lane)
  if is_step and not is_final(status) and flows().is_stopped(job) then
    flows().cancel(job) -- no step of a flow that stops begins again
  end
  return true
end

-- ---- who waits for a limit key ------------------------------------------------------------------

local function groups_of(key)
  local prefix = named(key)
  return call("ZRANGEBYLEX", ASIDE, "[" .. prefix, "(" .. sub(prefix, 1, -2) .. ";")
end

-- The limit of a group, and its queue.
local function limit_and_queue(group)
  local _, rest = name_in(group)
  _, rest = name_in(rest)
  local limit = match(rest, "^%d+")
  return tonumber(limit), sub(rest, #limit + 2)
end

-- Whether jobs of a limit key of a queue still wait for a token; waits_for_token in core/claim.py.
local function waits_for_token(queue, key, gate)
  local at = gate.key_rate and tonumber(call("ZSCORE", KEY_WAKES, key_in(queue, key)) or nil)
  return at and now < at and at <= now + 1 / gate.key_rate
end

-- Let the first of each group go: of some, a paused queue's say, nobody may come for them. Those of
-- one queue, if it is named.
local function wake(key, number, only)
  local number_running = running_of(key)
  for _, group in ipairs(groups_of(key)) do
    local limit, queue = limit_and_queue(group)
    local free_slots, gate = limit - number_running, gate_of(queue)
    if only and queue ~= only then
      free_slots = 0
    elseif limits_keys(gate) then
      free_slots = waits_for_token(queue, key, gate) and 0 or number
    end
    if free_slots > 0 then
      local last = min(free_slots, number) - 1
      local members, found = call("ZRANGE", BLOCKED .. group, 0, last), {}
      for n = 1, #members do found[n] = id_in_place(members[n]) end
      load_jobs(found)
      for n, id in ipairs(found) do
        local job = job_of(id)
        if job then
          shift(job, WAITS)
        else
          drop_odd(id, BLOCKED .. group, members[n], tag_in(members[n]))
          lanes[BLOCKED .. group] = {ASIDE, group}
        end
        is_work = true
      end
    end
  end
end

-- After ``flush``: whoever was let go stands in line again.
local function wake_freed()
  if next(freed) == nil then return end
  if call("EXISTS", ASIDE) == 1 then
    for key, number in pairs(freed) do wake(key, number) end
    flush()
  end
  freed = {}
end
