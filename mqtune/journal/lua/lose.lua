-- End a trial's attempt as lost.
--
-- KEYS  1 driver  2 meta  3 journal  4 trial  5 leases  6 staged
-- ARGV  1 channel  2 epoch  3 trial  4 attempt  5 guard: what must be so  6 event
--       7 timestamp of the trial's last report  8 the entry that the driver read last
--
-- The guard is one of
--   expired  it runs, and its lease has run out: its worker is gone, frozen or cut off
--   any      it runs
--   gone     it neither runs nor waits: its hash, or the entry that ended it, was deleted or evicted. A later attempt has an entry of its
--            own: one of which the driver has read none, though it has read all, is nonsense in the hash.
--
-- Returns 1 when this driver has ended it, 0 when something else is so; an error STALEDRIVER when a later driver exists. From here on the
-- attempt has ended, and nobody's claim of it counts. Repeating a call does no harm.

local refused = stale(KEYS[1], ARGV[2])
if refused then return refused end
also_when_full('HDEL', KEYS[1])
local have = redis.pcall('HMGET', KEYS[4], 'attempt', 'state', 'ended_by')
if have.err then have = {} end
local ended_by = ARGV[2] .. ':lost'
if have[1] == ARGV[4] and have[3] == ended_by then return 1 end
local is_under_way = have[1] == ARGV[4] and (have[2] == 'running' or have[2] == 'staged')
if ARGV[5] == 'gone' then
  if is_under_way then return 0 end
  if number(have[1], 0) > tonumber(ARGV[4]) then
    local newest = redis.call('XREVRANGE', KEYS[3], '+', '-', 'COUNT', 1)[1]
    if not newest or newest[1] ~= ARGV[8] then return 0 end
  end
  redis.call('DEL', KEYS[4])
  blank(KEYS[4], 'attempt', ARGV[4], 'timestamp', ARGV[7])
else
  if not is_under_way or have[2] ~= 'running' then return 0 end
  local runs_out = ARGV[5] == 'expired' and redis.call('ZSCORE', KEYS[5], ARGV[3])
  if runs_out and tonumber(runs_out) > now_ms() then return 0 end
end
redis.call('HSET', KEYS[4], 'state', 'ended', 'orders', '', 'ended_by', ended_by)
retire(KEYS[4])
redis.call('ZREM', KEYS[5], ARGV[3])
redis.call('ZREM', KEYS[6], ARGV[3])
append(KEYS[2], KEYS[3], ARGV[1], ARGV[6])
return 1
