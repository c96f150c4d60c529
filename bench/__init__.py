"""Real-part measurements and the RocketMQ driver; never imported by the daemon."""
