-- Return which of a driver's attempts are still running or staged, and repair the lists of leases and staged attempts.
--
-- KEYS  1 driver of the experiment, whose other keys share its prefix and slot
-- ARGV  1 epoch  2 milliseconds of a restored lease, then for each attempt: trial, attempt
--
-- Returns {id of the newest entry or '', then 1 for each attempt that runs or is staged, and 0 for each other}; an
-- error STALEDRIVER if a later driver exists. A running attempt without a lease gets one, for its worker to renew. A
-- staged attempt missing in the list is listed again. Idempotent.

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
    local of_task = #names > 1 and redis.call('HGET', prefix .. 'trial:' .. name, 'state') or state
    if of_task == 'running' and not redis.call('ZSCORE', leases, name) then
      redis.call('ZADD', leases, now + ARGV[2], name)
    elseif of_task == 'staged' and not redis.call('ZSCORE', staged, name) then
      redis.call('ZADD', staged, last_of(staged, now), name)
    end
  end
  found[#found + 1] = is_under_way and 1 or 0
end
return found
