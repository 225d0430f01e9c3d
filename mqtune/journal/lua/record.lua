-- Append driver events that no worker acts on.
--
-- KEYS  1 driver  2 meta  3 journal
-- ARGV  1 channel  2 epoch  3 mark, unique to these events  4 definition, or '' to keep it
--       then the events, at least one
--
-- Returns 1 if the events are in the journal; an error STALEDRIVER if a later driver exists. Idempotent by the mark,
-- unless other events were recorded in between.

local refused = stale(KEYS[1], ARGV[2])
if refused then return refused end
also_when_full('HDEL', KEYS[1])
if redis.call('HGET', KEYS[1], 'recorded') == ARGV[3] then return 1 end
redis.call('HSET', KEYS[1], 'recorded', ARGV[3])
if ARGV[4] ~= '' then redis.call('HSET', KEYS[2], 'definition', ARGV[4]) end
for i = 5, #ARGV do append(KEYS[2], KEYS[3], ARGV[1], ARGV[i]) end
return 1
