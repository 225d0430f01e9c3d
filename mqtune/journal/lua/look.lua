-- Return which of the attempts that the driver considers under way are, and repair the bookkeeping of these.
--
-- KEYS  1 driver of the experiment, whose other keys have names that begin and are placed alike
-- ARGV  1 epoch  2 milliseconds of a lease that is put back, then for each attempt: trial, attempt
--
-- Returns {id of the newest entry or '', then 1 for each attempt that is under way, 0 for each that is not}; an error
-- STALEDRIVER when a later driver exists. An attempt that runs without a lease gets one, which its worker renews if there is
-- one; one that is staged and not listed is listed again. Repeating a call does no harm.

local refused = stale(KEYS[1], ARGV[1])
if refused then return refused end
also_when_full('HDEL', KEYS[1])
local prefix, now = string.sub(KEYS[1], 1, -7), now_ms()
local leases, staged = prefix .. 'leases', prefix .. 'staged'
local newest = redis.call('XREVRANGE', prefix .. 'journal', '+', '-', 'COUNT', 1)[1]
local found = { newest and newest[1] or '' }
for at = 3, #ARGV, 2 do
  local state, names = standing(prefix .. 'trial:', ARGV[at], ARGV[at + 1])
  local is_under_way = state == 'running' or state == 'staged'
  for _, name in ipairs(is_under_way and names or {}) do
    local of_seat = #names > 1 and redis.call('HGET', prefix .. 'trial:' .. name, 'state') or state
    if of_seat == 'running' and not redis.call('ZSCORE', leases, name) then
      redis.call('ZADD', leases, now + ARGV[2], name)
    elseif of_seat == 'staged' and not redis.call('ZSCORE', staged, name) then
      redis.call('ZADD', staged, last_of(staged, now), name)
    end
  end
  found[#found + 1] = is_under_way and 1 or 0
end
return found
