-- Let jobs that went back to the queue at an instant yet to come wait from now on, for as long as was
-- decided. In: now, by how much clocks may differ, and after which tag to go on. Out: how many changed,
-- and the number of the next page, or 0 when that was the last.

local skew, first = args[2], args[3]
local tags = call("ZRANGEBYSCORE", SOON, "(" .. exact(now + skew), "+inf", "LIMIT", first, MOST_AT_ONCE)
local number = 0
local ids = {}
for n, tag in ipairs(tags) do ids[n] = id_in_tag(tag) end
load_jobs(ids)
for _, id in ipairs(ids) do
  local job = job_of(id)
  if job and job[STAGE] == LATER and job[DELIVERIES] > 0 and job[CHANGED_AT] > now + skew then
    line_up(job, false)
    job[RUN_AT], job[CHANGED_AT] = job[RUN_AT] - job[CHANGED_AT] + now, now
    line_up(job, true)
    changed[id] = job
    number = number + 1
  end
end
flush()
if number > 0 then
  is_work = true
  notify()
end
return {number, #tags == MOST_AT_ONCE and first + #tags - number or 0}
