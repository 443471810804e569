-- Put a row that was set aside back where it stood, or discard it. In: now, its id, and which of both.
-- Out: 0 if it was not set aside, 2 if another job holds its unique key, 3 if it is still none.

local id = args[2]
local kept = call("HGET", UNREADABLE, id)
if not kept then return 0 end
call("HDEL", UNREADABLE, id)
if args[3] then
  local noted, seq = flows().status_noted(kept), tonumber(call("ZSCORE", ALL, id) or 0)
  call("HDEL", JOB, id)
  call("HDEL", BODY, id)
  call("HDEL", TALE, id)
  call("ZREM", ALL, id)
  unlabelled[id] = pack(">I8", seq) .. id
  write_labels()
  flows().lose(id, seq, noted)
  notify()
  return 1
end
local job = job_of(id)
local is_held = job and job[STAGE] ~= ENDED and has(job, IS_UNIQUE) and holder_of(job[UNIQUE_KEY])
if not job or is_held then
  call("HSET", UNREADABLE, id, kept)
  return job and 2 or 3
end
if job[STAGE] == WAITS and job[RUN_AT] > now then
  job[STAGE], changed[id] = LATER, job
end
stand(job, true)
is_work = true
flush()
if has(job, IS_STEP) then flows().welcome(job) end
notify()
return 1
