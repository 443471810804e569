-- Take jobs out, whatever state they are in. In: now, and their ids.

load_jobs(args[2])
for _, id in ipairs(args[2]) do
  local job = job_of(id)
  if job then remove(job) end
end
flush()
return 1
