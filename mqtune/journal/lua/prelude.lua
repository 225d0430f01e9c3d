-- What the scripts share; it stands before each of them when they are loaded.

local function now_ms()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Append an event to the journal and publish the same bytes, with the entry's id and the id before it.
local function append(meta, journal, channel, event)
  local before = redis.call('HGET', meta, 'last') or '0-0'
  local id = redis.call('XADD', journal, '*', 'e', event)
  redis.call('HSET', meta, 'last', id)
  redis.call('PUBLISH', channel, id .. ' ' .. before .. ' ' .. event)
  return id
end

-- Send a worker hints: a list of {experiment, trial, attempt, answer}.
local function hint(channel, hints)
  redis.call('PUBLISH', channel, cmsgpack.pack(hints))
end

-- What the worker of an attempt is told: its intent, or else the last wish that a checkpoint be saved.
local function told(intent, saves)
  if intent ~= '' or saves == '0' then return intent end
  return 'save:' .. saves
end

-- Whether the driver that calls has been replaced by a later one.
local function stale(driver, epoch)
  return redis.call('HGET', driver, 'epoch') ~= epoch
end
local STALE = 'STALEDRIVER another driver has taken this experiment over'
