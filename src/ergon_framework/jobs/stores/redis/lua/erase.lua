-- Erase what jobs tell that have ended and were not moved since they were read. In: now, and which, each
-- with its new body and tale. Out: how many.

local ids, number = {}, 0
for n, each in ipairs(args[2]) do ids[n] = each[1] end
load_jobs(ids)
for _, each in ipairs(args[2]) do
  local id = each[1]
  local job = job_of(id)
  if job and job[STAGE] == ENDED and job[SEQ] == each[2] and job[FENCE] == each[3]
    and job[STATUS] == each[4] and job[CHANGED_AT] == each[5] then
    local taker = job[UNIQUE_KEY] ~= "" and taker_of(job[UNIQUE_KEY])
    if taker and taker[1] == id then takers[job[UNIQUE_KEY]] = false end
    job[UNIQUE_KEY], job[LIMIT_KEY] = "", ""
    set_flag(job, IS_UNIQUE, false)
    set_flag(job, HAS_KEY, false)
    set_flag(job, HAS_TALE, true)
    if has(job, IS_STEP) then flows().erase(id) end
    changed[id], bodies[id], tales[id], unlabelled[id] = job, blob(each[6]), blob(each[7]), job[TAG]
    number = number + 1
  end
end
flush()
return number
