-- Shared functions; each script is loaded behind those that it uses. Empty lines part them.

-- Have the script run to its end also on a server that is full (maxmemory): such a server refuses a script whose first write takes
-- memory, and no other. This write removes what is never there.
local function also_when_full(remove, key)
  redis.call(remove, key, '')
end

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Return the number that a field of a trial's hash holds, and *otherwise* for anything else: an error here would end a driver, or the reports of a
-- whole batch.
local function number(field, otherwise)
  return tonumber(string.match(field or '', '^%d+$')) or otherwise
end

-- Append an event to the journal, whose bytes are counted, and publish the same bytes, with the entry's id and the id before it.
local function append(meta, journal, channel, event)
  local have = redis.call('HMGET', meta, 'last', 'bytes')
  local id = redis.call('XADD', journal, '*', 'e', event)
  redis.call('HSET', meta, 'last', id, 'bytes', number(have[2], 0) + #event)
  redis.call('PUBLISH', channel, id .. ' ' .. (have[1] or '0-0') .. ' ' .. event)
  return id
end

-- Whether the journal has as many bytes as it may have.
local function is_full(meta)
  local have = redis.call('HMGET', meta, 'bytes', 'most_bytes')
  local most = number(have[2], 0)
  return most > 0 and number(have[1], 0) >= most
end

-- Whether orders leave an attempt running: they are no intent.
local function go_on(orders)
  return not orders or orders == '' or string.find(orders, ':', 1, true) ~= nil
end

-- Return the word that attempts which continue are told: 'wait' while the journal is full, else ''.
local function wait_if_full(meta)
  return is_full(meta) and 'wait' or ''
end

-- Return the orders as the answer to a worker that has sent something, behind them that it is to wait if its attempt goes on.
local function or_wait(orders, wait)
  if wait == '' or not go_on(orders) then return orders end
  return (not orders or orders == '') and wait or orders .. ' ' .. wait
end

-- Send a worker hints: a list of {experiment, trial, attempt, orders}.
local function hint(channel, hints)
  redis.call('PUBLISH', channel, cmsgpack.pack(hints))
end

-- The most seats of a gang, whatever a hash says: a script goes over all of them.
local MOST_SEATS = 1000

-- Return the names of the seats of an attempt, of which *gang* says how many there are, and whether each is to be on another worker.
local function seats_of(trial, gang)
  local count, where = string.match(gang or '', '^(%d+):(%l+):')
  local names = { trial }
  for seat = 1, math.min(number(count, 1), MOST_SEATS) - 1 do names[seat + 1] = trial .. '~' .. seat end
  return names, where == 'apart'
end

-- Return how an attempt stands, and the names of its seats: 'running' if a seat runs, 'staged', 'ended' if all have, or '' where the hash
-- of a seat is not there, or is something else.
local function standing(prefix, trial, attempt)
  local state, names, at = 'ended', { trial }, 1
  while names[at] do
    local have = redis.pcall('HMGET', prefix .. names[at], 'attempt', 'state', 'gang')
    if have.err or have[1] ~= attempt then return '', names end
    if at == 1 then names = seats_of(trial, have[3]) end
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

-- Return the time at which a gang counts as staged: after all that wait, as seats are taken in that order, and several come in a millisecond.
local function last_of(staged, now)
  local last = redis.call('ZRANGE', staged, -1, -1, 'WITHSCORES')[2]
  return last and math.max(now, tonumber(last) + 0.001) or now
end

-- Delete the hashes of the further seats of a trial, and return how many there were.
local function forget_seats(trial)
  local seats = 0
  while redis.call('DEL', trial .. '~' .. seats + 1) == 1 do seats = seats + 1 end
  return seats
end

-- The fields of a trial's hash whose attempt has only begun, or is over.
local function blank(trial, ...)
  redis.call('HSET', trial, 'sequence', 0, 'orders', '', 'worker', '', 'token', '', 'ended_by', '', 'saved', '', 'held_until', 0, ...)
end

-- Return the policy of workers if nobody has driven the experiment for longer than the grace: finish, stop; else ''.
local function undriven(meta)
  local have = redis.call('HMGET', meta, 'on_loss', 'loss_ms', 'driver_until')
  if not have[1] or have[1] == 'continue' or not have[3] then return '' end
  return now_ms() > have[3] + have[2] and have[1] or ''
end

-- Whether the name of an experiment fits a pattern, as quotas have it; what is none fits nothing: an error here would end the claims and
-- leases of all experiments.
local function fits(pattern, experiment)
  if not string.find(pattern, '^[%w%._%*%-]+$') then return false end
  return string.find(experiment, '^' .. string.gsub(string.gsub(pattern, '[%.%-]', '%%%0'), '%*', '.*') .. '$') ~= nil
end

-- Return the keys of the quotas that an experiment falls under, and how many of its attempts may run under each.
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

-- How long the list of what runs under a quota is kept when nothing does, in seconds.
local KEEP_QUOTA_S = 3600

-- How many leases one command sets: far fewer than the values that Lua can hand to a function.
local LEASES_AT_ONCE = 500

-- Give members of a sorted set, each of these trials behind a prefix, this score.
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

-- Set the leases of running attempts, and count these under their quotas until then.
local function lease(leases, quotas, experiment, trials, runs_out)
  set_scores(leases, runs_out, '', trials)
  if #trials == 0 then return end
  for _, key in ipairs(quotas) do
    set_scores(key, runs_out, experiment .. '/', trials)
    redis.call('EXPIRE', key, KEEP_QUOTA_S)
  end
end

-- How long the hash of a trial whose attempt has ended is kept, in seconds. Until then a repeated call or late message is
-- answered by how the attempt ended; afterwards the trial is unknown, and the call is refused as well.
local KEEP_ENDED_S = 7 * 86400

local function retire(trial)
  redis.call('EXPIRE', trial, KEEP_ENDED_S)
end

local STALE = 'STALEDRIVER another driver has taken this experiment over'
local GONE = 'JOURNALGONE the server no longer has what this driver has written'

-- The error for a driver that has been replaced by a later one, or whose lock the server has lost; false for any other.
local function stale(driver, epoch)
  local have = redis.call('HGET', driver, 'epoch')
  if have == epoch then return false end
  if epoch ~= '0' and tonumber(have or '0') < tonumber(epoch) then return redis.error_reply(GONE) end
  return redis.error_reply(STALE)
end
