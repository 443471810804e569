-- Cut leases that end later than they could if they were renewed now. In: now, by worker how long it
-- claims for, and how long anybody else may, and the least of them all.

local leases, others, least = args[2], args[3], args[4]
local tags = call("ZRANGEBYSCORE", LEASES, "(" .. exact(now + least), "+inf", "LIMIT", 0, 1000)
local number = 0
for _, tag in ipairs(tags) do
  local job = job_of(id_in_tag(tag))
  local latest = job and now + (leases[job[WORKER]] or others)
  if job and job[LEASED_UNTIL] > latest then
    job[LEASED_UNTIL] = latest
    rank(LEASES, job[TAG], latest)
    changed[job[ID]] = job
    number = number + 1
  end
end
flush()
return number
