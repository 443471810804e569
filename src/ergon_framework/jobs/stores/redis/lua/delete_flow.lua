-- Delete some steps of a flow that was kept long enough and not changed since it was read, and at last
-- the flow. In: now, the flow, its instants of purging and of the last change, and how many. Out:
-- whether more of it is left.

if not flows().is_as_read(args[2], args[3], args[4]) then return 0 end
local _, is_gone = flows().purge_one(args[2], args[5], remove)
return is_gone and 0 or 1
