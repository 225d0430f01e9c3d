-- Journal that checkpoints are deleted, and delete the ones in memory.
--
-- KEYS  1 driver  2 meta  3 journal  4 checkpoints
-- ARGV  1 channel  2 epoch  3 event  4… the checkpoints
--
-- Returns 1; an error STALEDRIVER if a later driver exists. A repeated call journals nothing, unless other checkpoints
-- were dropped in between. It still deletes them, because a worker may have written one again. Without checkpoints
-- nothing is journaled.

local refused = stale(KEYS[1], ARGV[2])
if refused then return refused end
also_when_full('HDEL', KEYS[1])
if #ARGV < 4 then return 1 end
for i = 4, #ARGV do
  redis.call('HDEL', KEYS[4], ARGV[i])
end
local mark = redis.sha1hex(table.concat(ARGV, ' ', 4))
if redis.call('HGET', KEYS[1], 'dropped') == mark then return 1 end
redis.call('HSET', KEYS[1], 'dropped', mark)
append(KEYS[2], KEYS[3], ARGV[1], ARGV[3])
return 1
