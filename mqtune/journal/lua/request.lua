-- Append a request for the driver. No driver needs to run.
--
-- KEYS  1 meta  2 journal  3 requests
-- ARGV  1 channel  2 id of the request  3 event  4 whether a full server accepts it, '1' or '0'
--
-- Returns the id of the request's journal entry, or '' if there is no such experiment. Idempotent by the id of the
-- request: repeating a call returns the same entry and writes nothing.

local have = redis.call('HGET', KEYS[3], ARGV[2])
if have then return have end
if redis.call('HEXISTS', KEYS[1], 'definition') == 0 then return '' end
if ARGV[4] == '1' then also_when_full('HDEL', KEYS[1]) end
local entry = append(KEYS[1], KEYS[2], ARGV[1], ARGV[3])
redis.call('HSET', KEYS[3], ARGV[2], entry)
return entry
