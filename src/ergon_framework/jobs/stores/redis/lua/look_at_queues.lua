-- Some queues: how many jobs each has by status, its settings, and since when its oldest is due. In: now,
-- the names, at how many jobs that wait for their time, and groups that wait for a limit key, to look,
-- and among how many priorities.

local names, most, priorities = args[2], args[3], args[4]
local oldest = {}
for _, name in ipairs(names) do oldest[name] = false end

local function older(queue, instant)
  local known = oldest[queue]
  if known ~= nil and instant <= now and (not known or instant < known) then
    oldest[queue] = instant
  end
end

-- The first of each priority is the oldest of it.
local function look_into(key, queue)
  local from = "-inf"
  for _ = 1, priorities do
    local found = call("ZRANGEBYSCORE", key, from, "+inf", "WITHSCORES", "LIMIT", 0, 1)
    if #found == 0 then return end
    local job = job_of(id_in_place(found[1]))
    if job then older(queue, job[RUN_AT]) end
    from = "(" .. found[2]
  end
end

local from = "-"
while true do
  local lane = call("ZRANGEBYLEX", LANES, from, "+", "LIMIT", 0, 1)[1]
  if not lane then break end
  local executor = name_in(lane)
  for _, name in ipairs(names) do
    lane = lane_of(executor, name)
    if call("ZSCORE", LANES, lane) then
      look_into(DUE .. lane, name)
      for _, key in ipairs(call("ZRANGE", DUE_KEYS .. lane, 0, most - 1)) do
        look_into(due_of_key(key, lane), name)
      end
    end
  end
  from = "(" .. sub(named(executor), 1, -2) .. ";" -- behind all lanes of this one
end
for _, group in ipairs(call("ZRANGE", ASIDE, 0, most - 1)) do
  local _, rest = name_in(group)
  _, rest = name_in(rest)
  local queue = sub(rest, #match(rest, "^%d+:") + 1)
  if oldest[queue] ~= nil then look_into(BLOCKED .. group, queue) end
end
for _, each in ipairs(call("ZRANGEBYSCORE", SOON, "-inf", now, "LIMIT", 0, most)) do
  local job = job_of(id_in_tag(each))
  if job then older(job[QUEUE], job[RUN_AT]) end
end

local found = {}
for n, name in ipairs(names) do
  local fields = {}
  for status = PENDING, CANCELLED do fields[#fields + 1] = status .. ":" .. name end
  local instant = oldest[name]
  found[n] = {
    call("HMGET", COUNTS, unpack(fields)), call("HGET", QUEUES, name), instant and exact(instant),
  }
end
return found
