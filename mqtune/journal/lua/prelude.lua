-- Shared functions. Empty lines separate them. Each script is loaded together with the functions that it uses.

-- Let the script run to its end on a full server (maxmemory), too. Such a server refuses a script only if its first
-- write takes memory. This write, which must be the first one, removes a field that never exists.
local function also_when_full(remove, key)
  redis.call(remove, key, '')
end

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Return the number in a field of a trial's hash, and *otherwise* for anything else. An error here would end a driver,
-- or lose a whole batch of reports.
local function number(field, otherwise)
  return tonumber(string.match(field or '', '^%d+$')) or otherwise
end

-- Append an event to the journal and count its bytes. Publish the same bytes, with the entry's id and the id before it.
local function append(meta, journal, channel, event)
  local have = redis.call('HMGET', meta, 'last', 'bytes')
  local id = redis.call('XADD', journal, '*', 'e', event)
  redis.call('HSET', meta, 'last', id, 'bytes', number(have[2], 0) + #event)
  redis.call('PUBLISH', channel, id .. ' ' .. (have[1] or '0-0') .. ' ' .. event)
  return id
end

-- Whether the journal has reached its limit of bytes.
local function is_full(meta)
  local have = redis.call('HMGET', meta, 'bytes', 'most_bytes')
  local most = number(have[2], 0)
  return most > 0 and number(have[1], 0) >= most
end

-- Whether orders leave an attempt running, that is, contain no intent.
local function go_on(orders)
  return not orders or orders == '' or string.find(orders, ':', 1, true) ~= nil
end

-- Return 'wait', for attempts that continue, while the journal is full; else ''.
local function wait_if_full(meta)
  return is_full(meta) and 'wait' or ''
end

-- Return the orders as the answer to a worker, followed by *wait* if its attempt continues.
local function or_wait(orders, wait)
  if wait == '' or not go_on(orders) then return orders end
  return (not orders or orders == '') and wait or orders .. ' ' .. wait
end

-- Send a worker hints: a list of {experiment, trial, attempt, orders}.
local function hint(channel, hints)
  redis.call('PUBLISH', channel, cmsgpack.pack(hints))
end

-- Maximum tasks of an attempt, even if a hash has more: a script iterates over all of them.
local MOST_TASKS = 1000

-- Return the names of an attempt's tasks, and whether each needs its own worker. *plan* has both facts.
local function tasks_of(trial, plan)
  local count, where = string.match(plan or '', '^(%d+):(%l+):')
  local names = { trial }
  for task = 1, math.min(number(count, 1), MOST_TASKS) - 1 do names[task + 1] = trial .. '~' .. task end
  return names, where == 'apart'
end

-- Return an attempt's state and the names of its tasks. The state is 'running' if a task runs, 'ended' if all tasks
-- have ended, and 'staged' otherwise. It is '' if the hash of a task is missing, invalid or another attempt's.
local function standing(prefix, trial, attempt)
  local state, names, at = 'ended', { trial }, 1
  while names[at] do
    local have = redis.pcall('HMGET', prefix .. names[at], 'attempt', 'state', 'gang')
    if have.err or have[1] ~= attempt then return '', names end
    if at == 1 then names = tasks_of(trial, have[3]) end
    if have[2] == 'running' then
      state = 'running'
    elseif have[2] == 'staged' then
      state = state == 'running' and state or 'staged'
    elseif have[2] ~= 'ended' then
      return '', names
    end
    at = at + 1
  end
  return state, names
end

-- Return a staging time for an attempt: *now*, or just after the latest time in the list. Attempts may be staged in the
-- same millisecond, and attempts get workers in the order of these times.
local function last_of(staged, now)
  local last = redis.call('ZRANGE', staged, -1, -1, 'WITHSCORES')[2]
  return last and math.max(now, tonumber(last) + 0.001) or now
end

-- Delete the hashes of a trial's further tasks, and return their number.
local function forget_tasks(trial)
  local tasks = 0
  while redis.call('DEL', trial .. '~' .. tasks + 1) == 1 do tasks = tasks + 1 end
  return tasks
end

-- Reset the fields of a trial's hash for an attempt that has just begun, or is over.
local function blank(trial, ...)
  redis.call('HSET', trial, 'sequence', 0, 'orders', '', 'worker', '', 'token', '', 'ended_by', '', 'saved', '', 'held_until', 0, ...)
end

-- Return the workers' policy ('finish' or 'stop') if the driver has been away for the grace period; else ''.
local function undriven(meta)
  local have = redis.call('HMGET', meta, 'on_loss', 'loss_ms', 'driver_until')
  if not have[1] or have[1] == 'continue' or not have[3] then return '' end
  return now_ms() > have[3] + have[2] and have[1] or ''
end

-- Whether an experiment's name matches a quota's pattern. An invalid pattern matches nothing: an error would end all
-- experiments' claims and leases.
local function fits(pattern, experiment)
  if not string.find(pattern, '^[%w%._%*%-]+$') then return false end
  return string.find(experiment, '^' .. string.gsub(string.gsub(pattern, '[%.%-]', '%%%0'), '%*', '.*') .. '$') ~= nil
end

-- Return the keys of an experiment's quotas, and the limit of running attempts of each.
local function quotas_of(quotas, experiment)
  local keys, most = {}, {}
  local all = redis.call('HGETALL', quotas)
  for i = 1, #all, 2 do
    local slots = number(all[i + 1])
    if slots and fits(all[i], experiment) then
      keys[#keys + 1] = string.sub(quotas, 1, -2) .. ':' .. all[i]
      most[#most + 1] = slots
    end
  end
  return keys, most
end

-- How long the list of a quota is kept after its last use, in seconds.
local KEEP_QUOTA_S = 3600

-- Number of leases set by one command, far below the limit of a Lua function's arguments.
local LEASES_AT_ONCE = 500

-- Set the score of trials in a sorted set. The prefix precedes their names there.
local function set_scores(key, score, prefix, trials)
  for begin = 1, #trials, LEASES_AT_ONCE do
    local scored = {}
    for i = begin, math.min(#trials, begin + LEASES_AT_ONCE - 1) do
      scored[#scored + 1] = score
      scored[#scored + 1] = prefix .. trials[i]
    end
    redis.call('ZADD', key, unpack(scored))
  end
end

-- Set the leases of running attempts. Until these expire, the attempts count for their quotas.
local function lease(leases, quotas, experiment, trials, runs_out)
  set_scores(leases, runs_out, '', trials)
  if #trials == 0 then return end
  for _, key in ipairs(quotas) do
    set_scores(key, runs_out, experiment .. '/', trials)
    redis.call('EXPIRE', key, KEEP_QUOTA_S)
  end
end

-- How long the hash of a trial is kept after its attempt has ended, in seconds. With it, repeated calls and late
-- messages get their answers. Later the trial is unknown, and such calls are refused.
local KEEP_ENDED_S = 7 * 86400

local function retire(trial)
  redis.call('EXPIRE', trial, KEEP_ENDED_S)
end

local STALE = 'STALEDRIVER another driver has taken this experiment over'
local GONE = 'JOURNALGONE the server no longer has what this driver has written'

-- Return an error for a driver that was replaced by a later one, or whose lock the server has lost; else false.
local function stale(driver, epoch)
  local have = redis.call('HGET', driver, 'epoch')
  if have == epoch then return false end
  if epoch ~= '0' and tonumber(have or '0') < tonumber(epoch) then return redis.error_reply(GONE) end
  return redis.error_reply(STALE)
end
