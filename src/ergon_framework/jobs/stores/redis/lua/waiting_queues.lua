-- Queues whose jobs became due without standing in a lane, and since when each has one: they wait for a limit
-- key, or nobody claimed since their time came. In: now, after which group, how many groups and jobs that wait
-- for their time to look at, among how many priorities, and whether the latter are wanted. Out: names and
-- instants, and the last group that was read, if there may be more.

local after, most, priorities, with_later = unpack(args, 2, 5)
local oldest = {}

local function older(queue, instant)
  if instant <= now and (not oldest[queue] or instant < oldest[queue]) then
    oldest[queue] = instant
  end
end

local groups = call("ZRANGEBYLEX", ASIDE, after and "(" .. after or "-", "+", "LIMIT", 0, most)
for _, group in ipairs(groups) do
  local _, rest = name_in(group)
  _, rest = name_in(rest)
  local queue, from = sub(rest, #match(rest, "^%d+:") + 1), "-inf"
  for _ = 1, priorities do -- the first of each is the oldest of it
    local found = call("ZRANGEBYSCORE", BLOCKED .. group, from, "+inf", "WITHSCORES", "LIMIT", 0, 1)
    if #found == 0 then break end
    local job = job_of(id_in_place(found[1]))
    if job then older(queue, job[RUN_AT]) end
    from = "(" .. found[2]
  end
end
if with_later then
  for _, each in ipairs(call("ZRANGEBYSCORE", SOON, "-inf", now, "LIMIT", 0, most)) do
    local job = job_of(id_in_tag(each))
    if job then older(job[QUEUE], job[RUN_AT]) end
  end
end

local times = {}
for queue, instant in pairs(oldest) do
  times[#times + 1] = queue
  times[#times + 1] = exact(instant)
end
return {times, #groups == most and groups[#groups]}
