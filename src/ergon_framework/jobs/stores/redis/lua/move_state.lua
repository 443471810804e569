-- Write the move state down, or forget it. In: now, and which blob it is: none to forget it.

if args[2] then call("SET", MARK, blob(args[2])) else call("DEL", MARK) end
return 1
