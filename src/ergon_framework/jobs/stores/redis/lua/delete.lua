-- Taking jobs out of the store.

local function remove(job)
  stand(job, false)
  if has(job, IS_STEP) then flows().forget(job) end
  if job[UNIQUE_KEY] ~= "" then
    local taker = taker_of(job[UNIQUE_KEY])
    if taker and taker[1] == job[ID] then takers[job[UNIQUE_KEY]] = false end
  end
  rank(ALL, job[ID], false)
  unlabelled[job[ID]] = job[TAG]
  changed[job[ID]] = nil
  tales[job[ID]] = nil
  gone[job[ID]] = true
  jobs[job[ID]], rows[job[ID]] = false, false
end
