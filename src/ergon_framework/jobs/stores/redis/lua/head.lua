-- What is needed nearly everywhere: the functions of the server, what the caller sent, and the time.
--
-- ``scripts.py`` puts all that follows into one function. On each call a script makes its functions
-- anew, and Lua searches the locals around it for each name that a function takes from there. Names
-- that come from outside of all of it are found at once.

if redis.replicate_commands then redis.replicate_commands() end -- servers before 7 need the word

local call, floor, max, min = redis.call, math.floor, math.max, math.min
local byte, char, gsub, match, sub = string.byte, string.char, string.gsub, string.match, string.sub
local pack, unpack_from, concat = struct.pack, struct.unpack, table.concat

local args, channel = cmsgpack.unpack(ARGV[1]), ARGV[2]
local function blob(n) return n and ARGV[3 + n] end -- what is no text follows, and is told by number
local now = args[1]
if not now then
  local time = call("TIME")
  now = tonumber(time[1]) + tonumber(time[2]) / 1000000
end
