-- Add a flow with its steps, or steps to one that is there: all or none. In: now, its id, its row and
-- its plan if it is new, how many steps it gets, its joins, the steps that come along, how many lists
-- of others were handed in before, and the ids of jobs that become its steps.

local flow_id, made, plan, number, joins, steps, staged, after = unpack(args, 2, 9)
local found, is_known = {}, {}

load_jobs(after)
for n, id in ipairs(after) do
  local job = job_of(id)
  if not job then return {"missing", n} end
  if has(job, IS_STEP) then
    local place = flows().place_of(id)
    if not place or place[FLOW_ID] ~= flow_id then return {"conflict"} end
  elseif job[STATUS] == CANCELLED and job[WHY] == EDITED then
    return {"conflict"} -- since the client looked, which now finds what it became
  end
  found[n] = job
end

if made then
  if call("HEXISTS", FLOW, flow_id) == 1 then return {"taken"} end
  if staged ~= call("LLEN", STAGED .. flow_id) then return {"late"} end
else
  local flow = flows().flow_of(flow_id)
  if not flow then return {"none"} end
  if not flows().may(flow, "steps_added") then return {"over"} end
end

local ids = {}
for n, new in ipairs(steps) do ids[n] = new[1] end
load_jobs(ids)
for n, new in ipairs(steps) do
  if rows[new[1]] or is_taken[new[1]] or is_known[new[1]] then return {"id", n} end
  is_known[new[1]] = true
  new[10] = blob(new[10])
end
for _, join in ipairs(joins) do join[3] = blob(join[3]) end

if made then
  made[MADE_AT], made[MOVED_AT] = now, now
  call("HSET", PLAN, flow_id, blob(plan))
end
flows().add(flow_id, made, number, joins, steps, found)
notify()
return {"added"}
