-- Set rows aside that cannot be read. In: now, and of each its id, what is wrong with it, and whether
-- it has just been claimed, which is undone.

for _, each in ipairs(args[2]) do
  local id, problem, is_claimed = unpack(each, 1, 3)
  local job = job_of(id)
  if job then
    stand(job, false)
    let_go(job)
    if is_claimed then
      job[STAGE], job[STATUS] = WAITS, job[ATTEMPTS] > 0 and RETRYING or PENDING
      job[DELIVERIES] = job[DELIVERIES] - 1
      -- A claim of a job that waits writes its worker behind the row: there must be none.
      job[CLAIMED_AT], job[LEASED_UNTIL], job[WORKER] = 0, 0, ""
      changed[id] = job
    end
    note(id, job[SEQ], job[QUEUE], job[STATUS], problem)
  elseif odd[id] then
    note(id, 0, "", RUNS, problem)
    for _, tag in ipairs(call("ZRANGE", LEASES, 0, -1)) do
      if id_in_tag(tag) == id then rank(LEASES, tag, false) end
    end
  end
end
is_work = true
flush()
wake_freed()
notify()
return 1
