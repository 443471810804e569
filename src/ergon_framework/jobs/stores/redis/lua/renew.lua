-- Prolong leases and charge attempts. In: now, holds, and how long.

local ids, answers = {}, {}
for n, hold in ipairs(args[2]) do ids[n] = hold[1] end
load_jobs(ids)
for n, hold in ipairs(args[2]) do
  local job = job_of(hold[1])
  answers[n] = job and job[SEQ] == hold[2] and job[FENCE] == hold[3] and job[STAGE] == ACTIVE
  if answers[n] then
    job[LEASED_UNTIL] = now + args[3]
    rank(LEASES, job[TAG], job[LEASED_UNTIL])
    if hold[4] and not has(job, IS_CHARGED) then
      job[ATTEMPTS] = job[ATTEMPTS] + 1
      set_flag(job, IS_CHARGED, true)
    end
    changed[job[ID]] = job
  end
end
flush()
return cmsgpack.pack(answers)
