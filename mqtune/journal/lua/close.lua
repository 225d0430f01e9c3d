-- Journal the end, or a pause, of a trial without a running attempt.
--
-- KEYS  1 driver  2 meta  3 journal  4 trial
-- ARGV  1 channel  2 epoch  3 attempt, the trial's last one  4 event
--
-- Returns 1 if this call has journaled it; 0 if an earlier call did, if that attempt has not ended, or if a later one
-- was staged; an error STALEDRIVER if a later driver exists. Idempotent by the event, as long as no other came in
-- between. An unknown trial has ended long ago.

local refused = stale(KEYS[1], ARGV[2])
if refused then return refused end
also_when_full('HDEL', KEYS[1])
local have = redis.call('HMGET', KEYS[4], 'attempt', 'state', 'closed')
local mark = redis.sha1hex(ARGV[4])
if not have[1] then
  redis.call('HSET', KEYS[4], 'attempt', ARGV[3], 'state', 'ended', 'closed', mark)
  retire(KEYS[4])
elseif have[1] ~= ARGV[3] or have[2] ~= 'ended' or have[3] == mark then
  return 0
else
  redis.call('HSET', KEYS[4], 'closed', mark)
end
append(KEYS[2], KEYS[3], ARGV[1], ARGV[4])
return 1
