-- Add jobs: all or none or, where they come from a schedule that fires, those that can be added.
--
-- In: now, jobs, moves by the id of a job that one of them replaces, and the schedule that fires:
-- its name, and its record as it was and as it is to be. Or the end of a job in whose place they come.
-- Nothing is decided here: whom a job is to replace is told to the caller, who comes again with the
-- move that the core makes of that.

local moves, fires, ends = args[3], args[4], args[5]
if fires and call("HGET", SCHEDULES, fires[1]) ~= blob(fires[2]) then return {"late"} end

local seq = tonumber(call("GET", LAST_SEQ) or 0)
local answers = {}
local refusal -- a job that cannot be added, and why

local function insert(new)
  local id, queue, executor, priority, delay, run_at, expires_at, key, _, limit_key, limit, body =
    unpack(new, 1, 12)
  seq = seq + 1
  local due = run_at or now + delay
  local rule = new[14] -- the ends after which it holds its key, and for how long
  local is_holder = key and not (rule and not rule[2]) -- until it ends
  local flags = (is_holder and IS_UNIQUE or 0) + (limit_key and HAS_KEY or 0)
  local job = {
    due <= now and WAITS or LATER, PENDING, flags, 0, 0, 0, 0,
    now, 0, 0, FOREVER, due, expires_at or FOREVER,
    0, 0, seq, limit, priority, now, 0, 0, 0, 0,
    queue, executor, key or "", limit_key or "", "", "", id, pack(">I8", seq) .. id,
  }
  jobs[id], changed[id], bodies[id] = job, job, blob(body)
  labels[id] = new[13] or nil
  rank(ALL, id, seq)
  stand(job, true)
  if rule then take_key(job, rule[1], rule[2]) end
  is_work = true
end

-- Where a text or a run of bytes ends that begins at some place of what msgpack wrote.
local function past(text, at)
  local kind = byte(text, at)
  if kind < 192 then return at + 1 + kind - 160 end
  if kind == 196 or kind == 217 then return at + 2 + byte(text, at + 1) end
  if kind == 197 or kind == 218 then return at + 3 + unpack_from(">I2", text, at + 1) end
  return at + 5 + unpack_from(">I4", text, at + 1)
end

-- A body is a list that begins with the handler, the arguments, and those with names.
local function arguments_in(body)
  local from = past(body, byte(body) == 220 and 4 or 2)
  return from, past(body, past(body, from)) - 1
end

local function handler_in(body)
  local at = byte(body) == 220 and 4 or 2
  return sub(body, at, past(body, at) - 1)
end

-- Let a job that waits do so until the due time of another, with its arguments.
local function extend(n, job, new)
  local id, body = job[ID], blob(new[12])
  if handler_in(bodies[id] or call("HGET", BODY, id)) ~= handler_in(body) then
    refusal = {"handler", n, id}
    return
  end
  if new[7] and new[7] <= max(job[RUN_AT], new[6] or now + new[5]) then
    refusal = {"expiry", n, id}
    return
  end
  stand(job, false)
  let_go(job)
  job[RUN_AT], job[CHANGED_AT] = max(job[RUN_AT], new[6] or now + new[5]), now
  job[EXPIRES_AT] = new[7] or FOREVER
  if job[STAGE] < JOINING then
    job[STAGE] = job[RUN_AT] > now and LATER or job[STAGE] == LATER and WAITS or job[STAGE]
  end
  local old = bodies[id] or call("HGET", BODY, id)
  local from, to = arguments_in(old)
  bodies[id] = sub(old, 1, from - 1) .. sub(body, arguments_in(body)) .. sub(old, to + 1)
  stand(job, true)
  changed[id] = job
end

-- Whether a job that holds the unique key makes room: it may be replaced, and was.
local function makes_room(n, new, holder)
  if new[9] == REJECT or not is_waiting(holder) then
    refusal = {"key", n, holder[ID], is_final(holder[STATUS]) and 1 or nil}
  elseif not moves[holder[ID]] then
    refusal = {"replace", n, holder[ID], row_of(holder)}
  elseif not apply(moves[holder[ID]]) then
    refusal = {"again", n, holder[ID]}
  end
  return not refusal
end

local function add(n, new)
  local id, key, replaced = new[1], new[8], ""
  local holder = key and holder_of(key)
  if holder and not job_of(holder) then -- its row is none: it holds nothing
    if odd[holder] then note(holder, 0, "", PENDING, "its row is no job's") end
    holders[key], holder = false, nil
  end
  if key and not holder then
    local taker = taker_of(key)
    local last = taker and job_of(taker[1])
    holder = last and still_holds(taker, last) and taker[1]
  end
  if holder then
    if new[9] == EXISTING then return {holder, false, ""} end
    if new[9] == EXTEND and is_waiting(job_of(holder)) then
      extend(n, job_of(holder), new)
      return not refusal and {holder, false, ""}
    end
    if not makes_room(n, new, job_of(holder)) then return end
    replaced = holder
  end
  if job_of(id) or is_taken[id] then
    refusal = {"id", n}
    return
  end
  insert(new)
  return {id, true, replaced}
end

local is_duplicate = {key = true, id = true, handler = true, expiry = true}
local ids = {}
for n, new in ipairs(args[2]) do ids[n] = new[1] end
load_jobs(ids)
if ends then
  local job = job_of(ends[1])
  if not job or has(job, IS_STEP) or job[STATUS] ~= ends[4] or not apply(ends) then
    return {"moved"}
  end
end
for n, new in ipairs(args[2]) do
  if fires and (job_of(new[1]) or is_taken[new[1]]) then
    answers[n] = false
  else
    answers[n] = add(n, new) or false
    if refusal then
      if not (fires and is_duplicate[refusal[1]]) then return refusal end
      refusal = nil
    end
  end
end

flush()
wake_freed()
if seq > 0 then call("SET", LAST_SEQ, string.format("%.0f", seq)) end
if book then book.finish() end -- a step was replaced
if fires then call("HSET", SCHEDULES, fires[1], blob(fires[3])) end
notify()
return {"added", cmsgpack.pack(answers)}
