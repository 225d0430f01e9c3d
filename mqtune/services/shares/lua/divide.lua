-- Publish what each experiment may have of the fleet, and which workers there are.
--
-- KEYS  1 shares
-- ARGV  1 number with which the caller divides (see demand)  2 milliseconds for which the table holds  then, unless it stays as it is:
--       3 version of the crews  4 crews of the register  5 busy: who runs in how many slots  6 for how many milliseconds these are known
--       then for each experiment: token, share
--
-- Returns 1; 0 when another divides by now, and does nothing. Repeating a call does no harm.

if redis.call('HGET', KEYS[1], 'number') ~= ARGV[1] then return 0 end
if ARGV[3] then
  -- The first write takes no memory, so that a full server runs the others too.
  redis.call('DEL', KEYS[1])
  redis.call('HSET', KEYS[1], 'number', ARGV[1], 'version', ARGV[3], 'crews', ARGV[4], 'busy', ARGV[5], 'read_at', now_ms() - ARGV[6])
  for i = 7, #ARGV, 2 do redis.call('HSET', KEYS[1], 'of:' .. ARGV[i], ARGV[i + 1]) end
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
