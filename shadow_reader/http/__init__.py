"""Who talks to it: the aiohttp JSON API and its client."""
