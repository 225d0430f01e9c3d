-- Journal a request to the driver, whether one lives or not.
--
-- KEYS  1 meta  2 journal  3 requests
-- ARGV  1 channel  2 id of the request  3 event
--
-- Returns the id of the journal entry that holds the request, or '' when there is no such experiment. Idempotent by the id of
-- the request: repeating a call returns the same entry and writes nothing.

local have = redis.call('HGET', KEYS[3], ARGV[2])
if have then return have end
if redis.call('HEXISTS', KEYS[1], 'definition') == 0 then return '' end
local entry = append(KEYS[1], KEYS[2], ARGV[1], ARGV[3])
redis.call('HSET', KEYS[3], ARGV[2], entry)
return entry
