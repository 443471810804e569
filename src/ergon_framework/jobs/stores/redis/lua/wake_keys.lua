-- Let jobs be judged again that wait for limit keys: limits have changed. In: now, and how many keys.

for _, group in ipairs(call("ZRANGE", ASIDE, 0, args[2] - 1)) do freed[(name_in(group))] = 1 end
wake_freed()
notify()
return 1
