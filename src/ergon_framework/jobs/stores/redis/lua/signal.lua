-- Complete the steps that wait for a signal, or keep its value for them. In: now, the flow, the name,
-- and the value. Out: whether there are such steps; nothing where there is no such flow.

if not flows().flow_of(args[2]) then return false end
local is_any = flows().signal(args[2], args[3], blob(args[4]))
notify()
return is_any and 1 or 0
