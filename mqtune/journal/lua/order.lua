-- Give running attempts orders that do not end them. Each worker gets one message of hints.
--
-- KEYS  1 driver  2… the trial of each attempt
-- ARGV  1 epoch  2 prefix of control channels  3 experiment  then for each attempt: trial, attempt, order
--
-- An order is 'save:<number>', to save a checkpoint, or 'go:<sequence>' or 'go:<sequence>:<answer>', to continue after
-- that report. It replaces the attempt's earlier order of its kind. An intent stays, and precedes all others. Orders
-- are durable, hints are not: the answers to report, saved and renew repeat the orders.
--
-- Returns 1 for each running attempt, and 0 for each skipped other; an error STALEDRIVER if a later driver exists.
-- Idempotent.

local refused = stale(KEYS[1], ARGV[1])
if refused then return refused end
also_when_full('HDEL', KEYS[1])
local run, hints = {}, {}
for i = 2, #KEYS do
  local at = 4 + (i - 2) * 3
  local have = redis.call('HMGET', KEYS[i], 'attempt', 'state', 'worker', 'orders')
  run[i - 1] = have[1] == ARGV[at + 1] and have[2] == 'running' and 1 or 0
  if run[i - 1] == 1 and go_on(have[4]) then
    local order = ARGV[at + 2]
    local kind, orders = string.match(order, '^%l+:'), {}
    for other in string.gmatch(have[4] or '', '%S+') do
      if string.sub(other, 1, #kind) ~= kind then orders[#orders + 1] = other end
    end
    orders[#orders + 1] = order
    redis.call('HSET', KEYS[i], 'orders', table.concat(orders, ' '))
    hints[have[3]] = hints[have[3]] or {}
    table.insert(hints[have[3]], { ARGV[3], ARGV[at], tonumber(ARGV[at + 1]), order })
  end
end
for worker, found in pairs(hints) do hint(ARGV[2] .. worker, found) end
return run
