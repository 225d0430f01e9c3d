-- End a trial's attempt as lost.
--
-- KEYS  1 driver  2 meta  3 journal  4 trial  5 leases  6 staged
-- ARGV  1 channel  2 epoch  3 trial  4 attempt  5 guard: the required state  6 event
--       7 timestamp of the trial's last report  8 the driver's last read entry
--       9 prefix of control channels  10 experiment
--
-- The guard is one of
--   expired  it runs, and the lease of a task has expired: its worker is gone, frozen or cut off
--   any      it runs
--            Both also require that the driver has read all reports of the trial, because schedulers don't get reports
--            after an attempt's end.
--   gone     it neither runs nor waits: its hash, or the entry that ended it, was deleted or evicted. A later attempt
--            has its own entry. If the driver has read all entries and none of that attempt, the hash is corrupt.
--
-- If a task has already ended the attempt (see end), its end is appended instead of the driver's event.
--
-- Returns 1 if this driver has ended it, 0 if the guard or that end prevented it; an error STALEDRIVER if a later
-- driver exists. After 1 the attempt has ended and no claim of it counts; workers of other tasks are notified.
-- Idempotent.

-- The most unread entries that are checked. If there are more, the driver must read them first.
local LOOK = 100
-- First bytes of each entry of reports: a list of version, kind and body.
local REPORTS = '\147\1\167reports'

local function has_unread_reports(timestamp)
  -- Usually the driver has the trial's last report already. This check saves time if many attempts are lost.
  if (tonumber(timestamp or '') or 0) == tonumber(ARGV[7]) then return false end
  local entries = redis.call('XRANGE', KEYS[3], ARGV[8] == '' and '-' or '(' .. ARGV[8], '+', 'COUNT', LOOK)
  for _, entry in ipairs(entries) do
    local data = entry[2][2]
    if string.sub(data, 1, #REPORTS) == REPORTS and string.find(data, ARGV[3], 1, true) then return true end
  end
  return #entries == LOOK
end

local refused = stale(KEYS[1], ARGV[2])
if refused then return refused end
also_when_full('HDEL', KEYS[1])
local have = redis.pcall('HMGET', KEYS[4], 'attempt', 'ended_by', 'ended_as', 'end', 'timestamp')
if have.err then have = {} end
local ended_by, prefix = ARGV[2] .. ':lost', string.sub(KEYS[4], 1, -1 - #ARGV[3])
if have[1] == ARGV[4] and have[2] == ended_by then return 1 end
local state, names = standing(prefix, ARGV[3], ARGV[4])

-- Notify the worker of one of several tasks that it is fenced. The worker of any other attempt is gone.
local function tell(name)
  local worker = #names > 1 and redis.pcall('HGET', prefix .. name, 'worker')
  if type(worker) == 'string' and worker ~= '' then
    hint(ARGV[9] .. worker, { { ARGV[10], name, tonumber(ARGV[4]), 'fenced' } })
  end
end

if ARGV[5] == 'gone' then
  if state == 'running' or state == 'staged' then return 0 end
  if number(have[1], 0) > tonumber(ARGV[4]) then
    local newest = redis.call('XREVRANGE', KEYS[3], '+', '-', 'COUNT', 1)[1]
    if not newest or newest[1] ~= ARGV[8] then return 0 end
  end
  for _, name in ipairs(names) do
    tell(name)
    redis.call('DEL', prefix .. name)
    redis.call('ZREM', KEYS[5], name)
    redis.call('ZREM', KEYS[6], name)
  end
  -- Further tasks may exist even if the hash with their number is missing.
  for task = 1, forget_tasks(KEYS[4]) do
    redis.call('ZREM', KEYS[5], ARGV[3] .. '~' .. task)
    redis.call('ZREM', KEYS[6], ARGV[3] .. '~' .. task)
  end
  names = { ARGV[3] }
  blank(KEYS[4], 'attempt', ARGV[4], 'timestamp', ARGV[7])
else
  if state ~= 'running' then return 0 end
  local has_expired, now = ARGV[5] == 'any', now_ms()
  for _, name in ipairs(names) do
    local runs_out = redis.call('ZSCORE', KEYS[5], name)
    if not runs_out then
      has_expired = has_expired or redis.call('HGET', prefix .. name, 'state') == 'running'
    else
      has_expired = has_expired or tonumber(runs_out) <= now
    end
  end
  if not has_expired then return 0 end
end
local others = have[3] and have[3] ~= '' and have[3] ~= 'failure' and ARGV[5] ~= 'gone'
if ARGV[5] ~= 'gone' and not others and has_unread_reports(have[5]) then return 0 end
if others then ended_by = ARGV[2] .. ':' .. have[3] end
for _, name in ipairs(names) do
  tell(name)
  redis.call('HSET', prefix .. name, 'state', 'ended', 'orders', '', 'ended_by', ended_by)
  retire(prefix .. name)
  redis.call('ZREM', KEYS[5], name)
  redis.call('ZREM', KEYS[6], name)
end
append(KEYS[2], KEYS[3], ARGV[1], others and have[4] or ARGV[6])
return others and 0 or 1
