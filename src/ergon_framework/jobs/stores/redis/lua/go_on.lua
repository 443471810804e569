-- Go on with what is done to a flow in slices: its steps are added, or swept. In: now, and the flow.
-- Out: whether anything is left; nothing where there is no such flow.

if not flows().flow_of(args[2]) then return false end
local is_left = flows().go_on(args[2])
notify()
return is_left and 1 or 0
