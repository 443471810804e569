-- Every queue: how many jobs it has by status, its settings, and since when its oldest is due.

local oldest = {}

local function older(queue, instant)
  if instant <= now and (not oldest[queue] or instant < oldest[queue]) then
    oldest[queue] = instant
  end
end

-- The first of each priority is the oldest of it.
local function look_into(key, queue)
  local from = "-inf"
  while true do
    local found = call("ZRANGEBYSCORE", key, from, "+inf", "WITHSCORES", "LIMIT", 0, 1)
    if #found == 0 then return end
    local job = job_of(id_in_place(found[1]))
    if job then older(queue, job[RUN_AT]) end
    from = "(" .. found[2]
  end
end

for _, lane in ipairs(call("ZRANGE", LANES, 0, -1)) do
  local _, queue = name_in(lane)
  look_into(DUE .. lane, queue)
  for _, key in ipairs(call("ZRANGE", DUE_KEYS .. lane, 0, -1)) do
    look_into(due_of_key(key, lane), queue)
  end
end
for _, group in ipairs(call("ZRANGE", ASIDE, 0, -1)) do
  local _, rest = name_in(group)
  _, rest = name_in(rest)
  look_into(BLOCKED .. group, sub(rest, #match(rest, "^%d+:") + 1))
end
for _, each in ipairs(call("ZRANGEBYSCORE", SOON, "-inf", now, "LIMIT", 0, 1000)) do
  local job = job_of(id_in_tag(each))
  if job then older(job[QUEUE], job[RUN_AT]) end
end

local times = {}
for queue, instant in pairs(oldest) do
  times[#times + 1] = queue
  times[#times + 1] = exact(instant)
end
return {call("HGETALL", COUNTS), call("HGETALL", QUEUES), times}
