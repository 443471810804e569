-- Let nobody change jobs, or let them again. In: now, and which blob says where all went: none to let.

if args[2] then call("SET", BAR, blob(args[2])) else call("DEL", BAR) end
return 1
