-- Which replica takes a request: an exact one that can still compute its prompt in time, else a fast one that can, else any.
--
-- HAProxy loads this file with the constants of route_rule.py, which is the same rule in Python, and an argument for each
-- application: "BACKEND PREFIX SERVER SERVER ...". Every replica says on its page PREFIX/room how many prompt tokens it can take;
-- it is asked ten times a second.

local PERIOD_MS = 100
local TIMEOUT_MS = 500
local SESSIONS = 10000 -- whose last replica is remembered, at most twice as many
local SESSION_BYTES = 256 -- a longer name is none
local BYTES_PER_TOKEN = 4
local BYTES_PER_TOKEN_ID = 6
local WHOLE_BYTES = 48 * 1024 -- a body of unknown length that is as long may go on beyond HAProxy's buffer

local constants, applications = ..., { select(2, ...) }
local numbers = {}
for number in constants:gmatch("%S+") do
    table.insert(numbers, tonumber(number))
end
local STALE_S, LAG_S, SPARE, LOAD_SHARE, PINNED_SHARE, MOST_BEHIND = table.unpack(numbers)

nestedfp = {}

-- Prompt tokens that a replica can take now; nil: it has not said so lately.
local function room_of(server, now)
    local room = server.room
    if not room or now - room.at > STALE_S then
        return nil
    end
    local left = math.min(room.tokens + room.per_s * (now - room.at), room.full)
    for _, sent in ipairs(server.sent) do
        if sent.at > room.at - LAG_S then
            left = left - sent.tokens
        end
    end
    return left
end

local function least_loaded(servers)
    local best
    for _, server in ipairs(servers) do
        if not best or server.open < best.open or (server.open == best.open and server.turn < best.turn) then
            best = server
        end
    end
    return best
end

-- The session's last server, or else the one with the most room, of those with room for so many tokens; nil: none has.
local function roomiest(servers, tokens, last, now)
    local roomy, most
    for _, server in ipairs(servers) do
        local room = room_of(server, now)
        if room and room >= tokens then
            if server.name == last then
                return server
            end
            if not most or room > most then
                roomy, most = {}, room
            end
            if room == most then
                table.insert(roomy, server)
            end
        end
    end
    return roomy and least_loaded(roomy)
end

-- The servers that take pinned requests now: under load as few as can (route_rule.py says why).
local function for_pinned(servers, now)
    local load_share, pinned_share = 0, 0
    for _, server in ipairs(servers) do
        if not room_of(server, now) then
            return servers
        end
        load_share = load_share + server.room.load_share
        pinned_share = pinned_share + server.room.pinned_share
    end
    if load_share < LOAD_SHARE * #servers then
        return servers
    end
    local few = { table.unpack(servers, 1, math.min(#servers, 1 + pinned_share // PINNED_SHARE)) }
    for _, server in ipairs(few) do
        if room_of(server, now) >= -MOST_BEHIND * server.room.full then
            return few
        end
    end
    return servers
end

-- Returns the server for a request, or nil where there is none. Pure.
-- servers: those that are up, each with open (requests), turn (when it was last chosen), room (its report or nil), sent.
function nestedfp.choose(servers, class, tokens, last, now)
    local exact, fast = {}, {}
    for _, server in ipairs(servers) do
        table.insert(server.room and server.room.exact and exact or fast, server)
    end
    local found = class ~= "fast" and roomiest(exact, tokens, last, now)
    if found then
        return found
    end
    if class == "exact" then
        fast = for_pinned(fast, now)
    end
    local pinned = class == "exact" and #exact > 0
    local pool = (pinned or #fast == 0) and exact or fast
    local first = least_loaded(pool)
    for _, server in ipairs(pool) do
        if server.name == last and server.open <= first.open + SPARE and (room_of(server, now) or 1) > 0 then
            return server
        end
    end
    for _, server in ipairs(pool) do
        if not room_of(server, now) then
            return first -- a replica that says nothing is not left without work
        end
    end
    if pinned then
        return roomiest(exact, -math.huge, nil, now)
    end
    -- Where nobody has room, the one that is the least behind: an exact replica computes fast what would be late. But no prompt that
    -- it never has room for.
    local anybody = { table.unpack(fast) }
    for _, server in ipairs(exact) do
        if server.room.full >= tokens then
            table.insert(anybody, server)
        end
    end
    return roomiest(fast, tokens, last, now) or roomiest(anybody, -math.huge, nil, now) or first
end

-- Prompt tokens of a request, by its body: an estimate; infinity where nobody can say.
function nestedfp.tokens(body, length)
    if not length and #body >= WHOLE_BYTES then
        return math.huge
    end
    local ids = body:find('"prompt"%s*:%s*%[+%s*%d')
    return (length or #body) // (ids and BYTES_PER_TOKEN_ID or BYTES_PER_TOKEN)
end

-- A report: "exact|fast TOKENS FULL_TOKENS TOKENS_PER_S LOAD_SHARE PINNED_SHARE AGE_S", or anything else: the replica says nothing.
function nestedfp.read(text, now)
    local numbers = "^(%a+) (%-?%d+) (%d+) ([%d.]+) ([%d.]+) ([%d.]+) ([%d.]+)%s*$"
    local class, tokens, full, per_s, load, pinned, age = text:match(numbers)
    if not class then
        return nil
    end
    return {
        exact = class == "exact",
        tokens = tonumber(tokens),
        full = tonumber(full),
        per_s = tonumber(per_s),
        load_share = tonumber(load),
        pinned_share = tonumber(pinned),
        at = now - tonumber(age),
    }
end

if not core then
    return
end

local backends = {} -- by name: servers in their order
local recent, before = {}, {} -- by backend and session: name of the server that had the last request
local remembered, turn = 0, 0

local function now_s()
    local now = core.now()
    return now.sec + now.usec * 1e-6
end

local function watch(server, url)
    while tonumber(core.get_info()["Stopping"]) == 0 do
        local got = core.httpclient():get({ url = url, timeout = TIMEOUT_MS })
        local now, kept = now_s(), {}
        server.room = got and got.status == 200 and nestedfp.read(got.body or "", now) or nil
        for _, sent in ipairs(server.sent) do
            if server.room and sent.at > now - STALE_S then
                table.insert(kept, sent)
            end
        end
        server.sent = kept
        core.msleep(PERIOD_MS)
    end
end

local function last_of(session)
    return session and (recent[session] or before[session])
end

local function remember(session, name)
    if not session then
        return
    end
    if not recent[session] then
        if remembered >= SESSIONS then
            recent, before, remembered = {}, recent, 0
        end
        remembered = remembered + 1
    end
    recent[session] = name
end

core.register_action("nestedfp_route", { "http-req" }, function(txn, backend)
    local known, up = backends[backend], {}
    -- By its name alone: of BACKEND/SERVER these functions cut off the end in Lua's own string.
    for _, server in ipairs(known) do
        if txn.f:srv_is_up(server.name) then
            server.open = txn.f:srv_conn(server.name)
            table.insert(up, server)
        end
    end
    local body = txn.f:req_body() or ""
    local class = txn.f:req_fhdr("x-nestedfp-precision")
    if not class or class == "auto" then
        class = body:match('"precision"%s*:%s*"(%w+)"')
    end
    class = class == "fp16" and "exact" or class
    local session = txn.f:req_fhdr("x-nestedfp-session") or body:match('"prompt_cache_key"%s*:%s*"([^"]+)"')
    session = session and #session <= SESSION_BYTES and backend .. " " .. session or nil
    local tokens, now = nestedfp.tokens(body, tonumber(txn.f:req_fhdr("content-length"))), now_s()
    local server = nestedfp.choose(up, class, tokens, last_of(session), now)
    if server then
        turn = turn + 1
        server.turn = turn
        if server.room then -- no more than all of it: nobody has shown a key yet
            table.insert(server.sent, { at = now, tokens = math.min(tokens, server.room.full) })
        end
        remember(session, server.name)
        txn:set_var("txn.server", server.name)
    end
end, 1)

core.register_init(function()
    for _, argument in ipairs(applications) do
        local words = {}
        for word in argument:gmatch("%S+") do
            table.insert(words, word)
        end
        local name, prefix = words[1], words[2] == "/" and "" or words[2]
        backends[name] = {}
        for index = 3, #words do
            local server = { name = words[index], turn = 0, open = 0, sent = {} }
            table.insert(backends[name], server)
            local address = core.backends[name].servers[words[index]]:get_addr()
            core.register_task(function()
                watch(server, "http://" .. address .. prefix .. "/room")
            end)
        end
    end
end)
