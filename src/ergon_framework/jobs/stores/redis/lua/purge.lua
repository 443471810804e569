-- Delete jobs that have ended and were not moved since they were read. In: now, and which.

local ids, number = {}, 0
for n, each in ipairs(args[2]) do ids[n] = each[1] end
load_jobs(ids)
for _, each in ipairs(args[2]) do
  local job = job_of(each[1])
  if job and job[STAGE] == ENDED and job[SEQ] == each[2] and job[FENCE] == each[3]
    and not has(job, IS_STEP) -- such a job is kept as long as its flow
    and job[STATUS] == each[4] and job[CHANGED_AT] == each[5] then
    remove(job)
    number = number + 1
  end
end
flush()
return number
