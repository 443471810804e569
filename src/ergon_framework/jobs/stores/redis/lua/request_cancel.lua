-- Note that a running job is to be cancelled. In: now, its id, its number, the fence, and the note.
-- The first request stays.

local job = job_of(args[2])
if not job or job[SEQ] ~= args[3] or job[FENCE] ~= args[4] or job[STAGE] ~= ACTIVE then return 0 end
if job[WHY] == "" then
  job[WHY] = args[5]
  changed[job[ID]] = job
  flush()
end
call("PUBLISH", channel .. "cancel", "")
return 1
