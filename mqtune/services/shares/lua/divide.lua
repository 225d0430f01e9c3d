-- Publish the shares of all experiments, and the register of workers.
--
-- KEYS  1 shares
-- ARGV  1 the caller's number (see demand)  2 lifetime of the table in milliseconds  then, unless it is unchanged:
--       3 version of the crews  4 crews of the register  5 busy: used slots of each experiment
--       6 age of these in milliseconds, then for each experiment: token, share
--
-- Returns 1; 0, without any change, if another driver divides by now. Idempotent.

if redis.call('HGET', KEYS[1], 'number') ~= ARGV[1] then return 0 end
if ARGV[3] then
  -- The first write takes no memory, so that a full server runs the others too.
  redis.call('DEL', KEYS[1])
  redis.call('HSET', KEYS[1], 'number', ARGV[1], 'version', ARGV[3], 'crews', ARGV[4], 'busy', ARGV[5], 'read_at', now_ms() - ARGV[6])
  for i = 7, #ARGV, 2 do redis.call('HSET', KEYS[1], 'of:' .. ARGV[i], ARGV[i + 1]) end
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
