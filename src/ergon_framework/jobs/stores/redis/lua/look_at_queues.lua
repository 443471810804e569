-- Some queues: how many jobs each has by status, its settings, and since when its oldest is due in a lane. In:
-- now, the names, at how many sets of due jobs to look, and among how many priorities. Out: each of these of the
-- first names, one at least, until that many sets were looked at.

local names, most, priorities = args[2], args[3], args[4]
local looked, oldest = 0, nil

-- The first of each priority is the oldest of it.
local function look_into(key)
  local from = "-inf"
  looked = looked + 1
  for _ = 1, priorities do
    local found = call("ZRANGEBYSCORE", key, from, "+inf", "WITHSCORES", "LIMIT", 0, 1)
    if #found == 0 then return end
    local job = job_of(id_in_place(found[1]))
    if job and job[RUN_AT] <= now and (not oldest or job[RUN_AT] < oldest) then oldest = job[RUN_AT] end
    from = "(" .. found[2]
  end
end

local executors, from = {}, "-"
while true do
  local lane = call("ZRANGEBYLEX", LANES, from, "+", "LIMIT", 0, 1)[1]
  if not lane then break end
  executors[#executors + 1] = name_in(lane)
  from = "(" .. sub(named(executors[#executors]), 1, -2) .. ";" -- behind all lanes of this one
end

local times, fields, some = {}, {}, {}
for n, name in ipairs(names) do
  if n > 1 and looked >= most then break end
  oldest = nil
  for _, executor in ipairs(executors) do
    local lane = lane_of(executor, name)
    if call("ZSCORE", LANES, lane) then
      look_into(DUE .. lane)
      for _, key in ipairs(call("ZRANGE", DUE_KEYS .. lane, 0, most - 1)) do
        look_into(due_of_key(key, lane))
      end
    end
  end
  times[n], some[n] = oldest and exact(oldest) or "", name
  for status = PENDING, CANCELLED do fields[#fields + 1] = status .. ":" .. name end
end
return {call("HMGET", COUNTS, unpack(fields)), call("HMGET", QUEUES, unpack(some)), times}
