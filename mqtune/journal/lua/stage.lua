-- Append that an attempt is wanted, and make it claimable. Its task is put on the queue of a worker without Celery, or published
-- afterwards.
--
-- KEYS  1 driver  2 meta  3 journal  4 trial  5 staged  6 leases  7 queue, if there is one
-- ARGV  1 channel  2 epoch  3 trial  4 attempt  5 assignment  6 event  7 task, if there is a queue
--
-- Returns 1 when the attempt is staged; 0 when this or a later attempt already was (nothing is journaled twice);
-- an error STALEDRIVER when a later driver exists. The attempt before it is superseded from here on.

local refused = stale(KEYS[1], ARGV[2])
if refused then return refused end
also_when_full('HDEL', KEYS[1])
if number(redis.call('HGET', KEYS[4], 'attempt'), 0) >= tonumber(ARGV[4]) then return 0 end
blank(KEYS[4], 'attempt', ARGV[4], 'state', 'staged', 'assignment', ARGV[5])
redis.call('PERSIST', KEYS[4])
redis.call('ZADD', KEYS[5], now_ms(), ARGV[3])
redis.call('ZREM', KEYS[6], ARGV[3])
append(KEYS[2], KEYS[3], ARGV[1], ARGV[6])
if KEYS[7] then redis.call('LPUSH', KEYS[7], ARGV[7]) end
return 1
