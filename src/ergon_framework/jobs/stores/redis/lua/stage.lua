-- Hand in joins or steps of a flow that is yet to be added; nobody sees them before. In: now, the id of
-- the flow, what they are, they themselves, how many there are already, and for how many seconds they
-- are kept when nobody comes back to add the flow. Out: how many there are, or which id is taken.

local flow_id, kind, found, number, kept = args[2], args[3], args[4], args[5], args[6]
local key = STAGED .. flow_id
if number == 0 then call("DEL", key) end
if kind == "steps" then
  local ids = {}
  for n, new in ipairs(found) do ids[n] = new[1] end
  load_jobs(ids)
  for n, new in ipairs(found) do
    if rows[new[1]] or is_taken[new[1]] then return {"id", n} end
    new[10] = blob(new[10])
  end
else
  for _, join in ipairs(found) do join[3] = blob(join[3]) end
end
-- Told again, its answer was lost: it is there.
if call("LLEN", key) == number then call("RPUSH", key, cmsgpack.pack({kind, found})) end
call("EXPIRE", key, kept)
return {"staged", call("LLEN", key)}
