-- Journal a request to the driver, whether one lives or not.
--
-- KEYS  1 meta  2 journal  3 requests
-- ARGV  1 channel  2 id of the request  3 event  4 whether a full server takes it, '1' or '0'  5 by how many microseconds requests may be
--       ahead of their rate, or '' for one that does not count
--
-- Returns the id of the journal entry that holds the request, or '' when there is no such experiment; {milliseconds until one may come, the
-- cap, for people} when too many have come, and then does nothing. Idempotent by the id of the request: repeating a call returns the same
-- entry and writes nothing.

local have = redis.call('HGET', KEYS[3], ARGV[2])
if have then return have end
if redis.call('HEXISTS', KEYS[1], 'definition') == 0 then return '' end
if ARGV[4] == '1' then also_when_full('HDEL', KEYS[1]) end
if ARGV[5] ~= '' then
  local ahead, each = come(KEYS[1], 'requests_us', 'requests_to', 0)
  -- Half of one, as what each takes was rounded.
  local over = ahead + each / 2 - ARGV[5]
  if over > 0 then return {math.ceil(over / 1000), redis.call('HGET', KEYS[1], 'requests_cap') or ''} end
  come(KEYS[1], 'requests_us', 'requests_to', 1)
end
local entry = append(KEYS[1], KEYS[2], ARGV[1], ARGV[3])
redis.call('HSET', KEYS[3], ARGV[2], entry)
return entry
