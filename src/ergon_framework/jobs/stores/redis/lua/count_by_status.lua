-- How many jobs of all queues have each status, in the order of their numbers. In: now, and of how many counts
-- that is told at once; false: there are more.

if call("HLEN", COUNTS) > args[2] then return false end
local numbers = {}
for status = PENDING, CANCELLED do numbers[status + 1] = 0 end
local found = call("HGETALL", COUNTS)
for n = 1, #found, 2 do
  local status = byte(found[n]) - 47 -- one digit, then the queue
  numbers[status] = numbers[status] + tonumber(found[n + 1])
end
return numbers
