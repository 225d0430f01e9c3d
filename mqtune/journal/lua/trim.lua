-- Replace the oldest entries of a journal by a chapter, which the experiment's store has.
--
-- KEYS  1 driver  2 meta  3 journal  4 chapters
-- ARGV  1 epoch  2 last entry of the previous chapter, or ''  3 its first entry  4 its last entry
--       5 the bytes of its entries  6 its line in the list of chapters
--
-- Returns the bytes of the remaining entries if the chapter is the last one. Returns -1, without any change, if the
-- last chapter is not the previous one; if there is no chapter and the journal begins with another entry; or if the
-- journal lacks the chapter's last entry, as on a server that was set back, or it is the newest one. Returns an error
-- STALEDRIVER if a later driver exists.
--
-- The very first entry is kept with the chapters. Idempotent. Readers see the new chapter and the shorter journal at
-- the same time.

local refused = stale(KEYS[1], ARGV[1])
if refused then return refused end
also_when_full('HDEL', KEYS[1])
local have = redis.call('HMGET', KEYS[4], 'trimmed', 'lines')
local bytes = number(redis.call('HGET', KEYS[2], 'bytes'), 0)
if have[1] == ARGV[4] then return bytes end
local around = redis.call('XRANGE', KEYS[3], ARGV[4], '+', 'COUNT', 2)
local left = around[2]
if (have[1] or '') ~= ARGV[2] or not left or around[1][1] ~= ARGV[4] then return -1 end
if not have[1] then
  local first = redis.call('XRANGE', KEYS[3], '-', '+', 'COUNT', 1)[1]
  if first[1] ~= ARGV[3] then return -1 end
  redis.call('HSET', KEYS[4], 'first', first[1] .. ' ' .. first[2][2])
end
bytes = math.max(0, bytes - ARGV[5])
redis.call('HSET', KEYS[4], 'trimmed', ARGV[4], 'lines', (have[2] or '') .. ARGV[6])
redis.call('HSET', KEYS[2], 'bytes', string.format('%.0f', bytes))
redis.call('XTRIM', KEYS[3], 'MINID', left[1])
return bytes
