-- Count steps of a flow by their rows. In: now, the flow, after which number to begin, how many to look
-- at, the statuses, the queue, and whether those that wait for others are left out. Out: how many there
-- are, and the number after which to go on, if there may be more.

local flow_id, from, most, wanted, queue, is_released = unpack(args, 2, 7)
local statuses = {}
for _, each in ipairs(wanted) do statuses[each] = true end

local ids, number = {}, 0
local tags = call("ZRANGEBYSCORE", STEPS .. flow_id, "(" .. from, "+inf", "LIMIT", 0, most)
for n, tag in ipairs(tags) do ids[n] = id_in_tag(tag) end
load_jobs(ids)
for _, id in ipairs(ids) do
  local row = rows[id]
  if row then
    local stage, status = byte(row, 1, 2)
    if statuses[status] and not (is_released and stage == JOINING)
      and (not queue or job_of(id)[QUEUE] == queue) then
      number = number + 1
    end
  end
end
return {number, #tags == most and string.format("%.0f", (unpack_from(">I8", tags[#tags]))) or false}
