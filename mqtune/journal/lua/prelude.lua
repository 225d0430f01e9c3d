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

-- Whether the driver that calls has been replaced by a later one.
local function stale(meta, epoch)
  return redis.call('HGET', meta, 'epoch') ~= epoch
end
local STALE = 'STALEDRIVER another driver has taken this experiment over'
